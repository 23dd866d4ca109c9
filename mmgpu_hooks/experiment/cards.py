"""Lists the GPUs of this host, and decides which of them a training may use."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from mmgpu_hooks.measure.absent import AbsentError, SourceError
from mmgpu_hooks.measure.gpu import open_gpu, start_nvml, stop_nvml
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.text import phrase

VARIABLE = 'CUDA_VISIBLE_DEVICES'
_SAME_MEMORY = 0.02
"""Relative difference in free memory (0.02: 2 %) up to which GPUs count as equal."""


@dataclass(frozen=True)
class Card:
    """GPU of this host: index, UUID, memory and use, and why it may not be picked."""

    index: int
    """Index of the GPU as in ``nvidia-smi``."""
    uuid: str | None = None
    """UUID of the GPU; ``None`` if the driver does not give it."""
    name: str | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    """Free memory of the GPU in bytes; ``None`` if the GPU cannot be read."""
    util_pct: float | None = None
    """Per cent of the driver's last sample period in which the GPU ran a kernel."""
    reason: str | None = None
    """Reason why nothing may run on the GPU; ``None`` if the GPU may be picked."""


def read_cards() -> tuple[Card, ...]:
    """Reads index, UUID, memory and use of every GPU, or why a GPU cannot be read.

    Raises:
        UserError: If there is no NVML, no driver or no card.
    """
    try:
        nvml = start_nvml()
    except AbsentError as error:
        raise UserError(
            phrase('expected an NVIDIA GPU, found none: {error}.', error=error)
        ) from error
    try:
        cards = tuple(map(_read_card, range(nvml.nvmlDeviceGetCount())))
    except nvml.NVMLError as error:
        raise UserError(
            phrase('expected a list of GPUs, NVML gave none: {error}.', error=error)
        ) from error
    finally:
        stop_nvml(nvml)
    if not cards:
        raise UserError(
            phrase('expected an NVIDIA GPU, found that the driver lists none.')
        )
    return cards


def count_cards() -> int:
    """Returns the number of GPUs that a training may use here; 0 without a driver."""
    try:
        cards = read_cards()
    except UserError:
        return 0
    return len(parse_visible(cards, os.environ) if VARIABLE in os.environ else cards)


def _read_card(index: int) -> Card:
    try:
        with closing(open_gpu(index=index)) as gpu:
            device, sample = gpu.device(), gpu.read_sample()
            reasons = gpu.reasons()
    except (AbsentError, SourceError) as error:
        return Card(index, reason=phrase('cannot be read: {reason}', reason=error))
    uuid, total = device.get('uuid'), device.get('memory_total_bytes')
    used = sample.get('mem_used_bytes')
    known = Card(index, uuid, device.get('name'), util_pct=sample.get('util_pct'))
    if gpu.is_sliced:
        return replace(
            known, reason=phrase('is cut into slices (MIG): name one yourself')
        )
    if not uuid or not total or used is None:
        needed = 'uuid', 'memory_total_bytes', 'mem_used_bytes'
        why = (reasons[figure] for figure in needed if figure in reasons)
        return replace(
            known,
            reason=phrase(
                'cannot be read: {reason}', reason=next(why, phrase('no UUID'))
            ),
        )
    return replace(known, total_bytes=total, free_bytes=total - used)


def judge_cards(
    cards: Sequence[Card], environ: Mapping[str, str], least_bytes: int | None = None
) -> list[Card]:
    """Adds the reasons why GPUs may not be picked, and sorts the best GPUs first.

    The best has the most free memory (2 % are equal), then the least utilisation; one
    of unknown utilisation comes last among equals.

    Args:
        cards: Of :func:`read_cards`.
        environ: With ``CUDA_VISIBLE_DEVICES``, if it is set.
        least_bytes: Of free memory; a tenth of the card's by default.
    """
    visible = parse_visible(cards, environ) if VARIABLE in environ else cards

    def judge(card: Card) -> str | None:
        if card.reason is not None or card.total_bytes is None:
            return card.reason
        if card not in visible:
            return phrase('not in {variable}', variable=VARIABLE)
        least = 0.1 * card.total_bytes if least_bytes is None else least_bytes
        if (card.free_bytes or 0) < least:
            return phrase('too little memory is free')
        return None

    judged = [replace(card, reason=judge(card)) for card in cards]
    free = [card.free_bytes or 0 for card in judged if card.reason is None]
    most = max(free, default=0)

    def worth(card: Card) -> tuple[bool, float, float, int]:
        free_bytes = card.free_bytes or 0
        level = (most - free_bytes) // (most * _SAME_MEMORY) if most else 0.0
        util_pct = 101.0 if card.util_pct is None else card.util_pct
        return card.reason is not None, level, util_pct, -free_bytes

    return sorted(judged, key=worth)


def parse_visible(cards: Sequence[Card], environ: Mapping[str, str]) -> list[Card]:
    """Returns the GPUs that ``CUDA_VISIBLE_DEVICES`` lets a process use, in order.

    They are read up to the first entry that names nothing. An entry that is there twice
    hides all of them. A number ends at what is no digit.

    Args:
        cards: Of the host, in the driver's order; those that cannot be read have no
            UUID.
        environ: With ``CUDA_VISIBLE_DEVICES``.

    Raises:
        UserError: If a number may mean another card, as they are not all alike.
    """
    # CUDA counts only the cards that the process may open
    readable = [card for card in cards if card.uuid]
    is_alike = len({card.name for card in readable}) == 1
    is_in_order = is_alike or environ.get('CUDA_DEVICE_ORDER') == 'PCI_BUS_ID'
    found: list[Card] = []
    entries = environ[VARIABLE].lower().split(',')
    for entry in (text.strip(' \t') for text in entries):
        # of other scripts' digits, CUDA reads none
        if number := re.match(r'\+?(\d+)', entry, re.ASCII):
            position = number[1].lstrip('0') or '0'
            named = [
                card for place, card in enumerate(readable) if str(place) == position
            ]
            if named and not is_in_order:
                raise UserError(
                    phrase(
                        "{variable}={environ} counts cards in CUDA's own order, and "
                        'they are not all alike; expected UUIDs, or '
                        'CUDA_DEVICE_ORDER=PCI_BUS_ID.',
                        variable=VARIABLE,
                        environ=environ[VARIABLE],
                    )
                )
        else:
            named = [
                card
                for card in readable
                if card.uuid and card.uuid.lower().startswith(entry)
            ]
        if len(named) != 1 or not entry:
            break
        if named[0] in found:
            return []
        found += named
    return found
