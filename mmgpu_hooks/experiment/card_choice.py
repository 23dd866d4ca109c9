"""Which cards are the best to run on now. Pure, so that every case can be tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mmgpu_hooks.experiment.visible_cards import (
    VARIABLE,
    find_excluded,
    parse_visible,
)
from mmgpu_hooks.schema import CardState

_SAME_PCT = 2.0
"""Of the most free memory: drivers reserve a little more on one card than another,
and a screen or an idle process must not outweigh an idle card."""


@dataclass(frozen=True)
class CardRequest:
    """What is asked for."""

    count: int = 1
    """How many cards."""
    min_free_bytes: int = 0
    """Least free memory."""
    min_free_pct: float = 0.0
    """The same as a share of the card's memory."""
    exclude: tuple[str, ...] = ()
    """Indices as in ``nvidia-smi``, or beginnings of UUIDs."""


def judge_cards(
    cards: Sequence[CardState], request: CardRequest, environ: Mapping[str, str]
) -> tuple[CardState, ...]:
    """Give each card that may not be picked the reason.

    Args:
        cards: All cards and slices of the host.
        request: What is asked for.
        environ: The environment, for ``CUDA_VISIBLE_DEVICES``.

    Raises:
        CardNameError: If a card is named that cannot be told for certain.
    """
    excluded = find_excluded(request.exclude, cards)
    visible = parse_visible(environ, cards)

    def why_not(card: CardState) -> str | None:
        if card.reason is not None:
            return card.reason
        if visible is not None and card.uuid not in visible:
            return f'not in {VARIABLE}'
        if card.label in excluded:
            return 'excluded'
        if card.is_sliced:
            return 'sliced (MIG): only its slices can be used'
        if card.slice_index is not None and request.count > 1:
            return 'a process can use one MIG slice only'
        return _too_full(card, request)

    return tuple(replace(card, reason=why_not(card)) for card in cards)


def rank_cards(cards: Sequence[CardState]) -> list[CardState]:
    """Cards that may be picked, best first: most free memory, then least busy.

    Cards whose free memory differs by less than 2 % of the most count as equal. A
    card that does not tell how busy it is comes after those that do.
    """
    fit = [card for card in cards if card.reason is None]
    most = max((card.memory_free_bytes or 0 for card in fit), default=0)

    def worth(card: CardState) -> tuple[float, float, int]:
        free = card.memory_free_bytes or 0
        level = (most - free) // (most * _SAME_PCT / 100) if most else 0
        return level, 101.0 if card.util_pct is None else card.util_pct, -free

    return sorted(fit, key=worth)


def _too_full(card: CardState, request: CardRequest) -> str | None:
    free, total = card.memory_free_bytes or 0, card.memory_total_bytes or 0
    if free < request.min_free_bytes or 100 * free < request.min_free_pct * total:
        return 'too little memory is free'
    return None
