"""Picks cards for a command: looks, chooses, leases and, when asked to, waits."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Callable, Union

from mmgpu_hooks.experiment.card_choice import CardRequest, judge_cards, rank_cards
from mmgpu_hooks.experiment.card_lease import CardLease, CardLeases
from mmgpu_hooks.experiment.visible_cards import VARIABLE
from mmgpu_hooks.measure.absent import Absent
from mmgpu_hooks.measure.cards import read_card_states
from mmgpu_hooks.measure.clock import Clock, monotonic_s
from mmgpu_hooks.schema import CardState

LOOK_S = 2.0
"""Seconds between two looks while waiting."""

ReadCards = Callable[[], Union[tuple[CardState, ...], Absent]]


class NoDriverError(Exception):
    """The cards of this host cannot be read; the message is one sentence."""


@dataclass(frozen=True)
class CardPick:
    """What was found, and taken."""

    cards: tuple[CardState, ...]
    """All cards and slices, each with the reason when it may not be picked."""
    picked: tuple[CardState, ...] = ()
    """Best first; empty when there were not enough."""
    leases: tuple[CardLease, ...] = ()

    @property
    def assignment(self) -> str:
        """``CUDA_VISIBLE_DEVICES=GPU-...``, the picked cards, for a shell."""
        return f'{VARIABLE}={self._visible}'

    def environ(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Environment in which a command sees the picked cards and no other."""
        return {**environ, VARIABLE: self._visible}

    @property
    def _visible(self) -> str:
        return ','.join(str(card.uuid) for card in self.picked)

    def release(self) -> None:
        """Give all leases back."""
        for lease in self.leases:
            lease.release()


def pick_cards(
    request: CardRequest,
    leases: CardLeases,
    environ: Mapping[str, str],
    *,
    wait_s: float = 0.0,
    on_wait: Callable[[CardPick], None] = lambda pick: None,
    read: ReadCards = read_card_states,
    clock: Clock = monotonic_s,
    sleep: Callable[[float], None] = time.sleep,
) -> CardPick:
    """Take the best cards, all that are asked for or none.

    Args:
        request: What is asked for.
        leases: Of this host.
        environ: The environment, for ``CUDA_VISIBLE_DEVICES``.
        wait_s: How long to wait for cards to become free.
        on_wait: Called once, before the waiting begins.
        read: Looks at the cards.
        clock: Monotonic clock.
        sleep: Waits some seconds.

    Raises:
        NoDriverError: If the cards cannot be read.
        CardNameError: If a card is named that cannot be told for certain.
        LeaseError: If the leases cannot be kept.
    """
    end_s = clock() + wait_s
    is_waiting = False
    while True:
        cards = read()
        if isinstance(cards, Absent):
            raise NoDriverError(cards.reason)
        pick = _take(judge_cards(cards, request, environ), request.count, leases)
        left_s = end_s - clock()
        if pick.picked or left_s <= 0:
            return pick
        if not is_waiting:
            is_waiting = True
            on_wait(pick)
        sleep(min(LOOK_S, left_s))


def _take(cards: tuple[CardState, ...], count: int, leases: CardLeases) -> CardPick:
    held: dict[str, str] = {}
    taken: list[tuple[CardState, CardLease]] = []
    with leases.picking():
        for card in rank_cards(cards):
            lease = leases.take(str(card.uuid))
            if isinstance(lease, str):
                held[str(card.uuid)] = lease
            elif len(taken) < count:
                taken.append((card, lease))
            else:
                lease.release()  # asked for only to tell who has the others
        if len(taken) < count:
            for _, lease in taken:
                lease.release()
            taken.clear()
    told = tuple(replace(c, reason=held.get(str(c.uuid), c.reason)) for c in cards)
    return CardPick(
        told, tuple(card for card, _ in taken), tuple(lease for _, lease in taken)
    )


def describe_shortage(pick: CardPick, request: CardRequest) -> str:
    """Why there are not enough cards, in one sentence."""
    whole = [card for card in pick.cards if not card.is_sliced]
    free = sum(card.reason is None for card in whole)
    reasons = '; '.join(
        f'{card.label} {card.reason}' for card in whole if card.reason is not None
    )
    return (
        f'expected {request.count} free card(s), found {free} of {len(whole)} '
        f'({reasons}); --wait SECONDS waits for them.'
    )
