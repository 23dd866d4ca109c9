"""Batch size against memory and speed, from the trials of a sweep. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mmgpu_hooks.judge.memory import CardRoom
from mmgpu_hooks.model.batches import compare_rules, find_knee, fit_batch_memory
from mmgpu_hooks.recommend.sweep_choice import is_eligible
from mmgpu_hooks.schema import (
    MemoryFit,
    MemoryPoint,
    MemoryRuleRow,
    NoPrediction,
    SweepRow,
)

CARD_MEMORY = 'cuda_allocator'
"""The source of peaks that are a card's, out of ``MEMORY_SOURCES``."""


@dataclass(frozen=True)
class BatchSizes:
    """What the batch size does to memory and speed, in one precision."""

    amp: bool | None
    """``None`` where the config's own precision was kept."""
    source: str | None
    """What the peaks are of, out of ``MEMORY_SOURCES``; ``None`` without any."""
    memory: MemoryFit | NoPrediction
    rules: tuple[MemoryRuleRow, ...]
    """Measured peaks beside what two rules say of them, smallest batch first."""
    card: CardRoom | None
    """``None`` where its size is unknown, or the peaks are none of a card."""
    without_room: tuple[int, ...]
    """Batch sizes that ran out of memory, smallest first."""
    images_per_s: Mapping[int, float]
    """By batch size, with the fastest of its settings that the host carries."""
    knee: int | None
    """The smallest batch size within 3 % of the fastest; ``None`` below two sizes."""


@dataclass(frozen=True)
class PrecisionRow:
    """Mixed precision over full precision, at one batch size."""

    batch_size: int
    memory_ratio: float | None
    speed_ratio: float | None


def fold_batch_sizes(rows: Sequence[SweepRow]) -> tuple[BatchSizes, ...]:
    """Fit each precision that was trained with several batch sizes.

    Args:
        rows: All trials.

    Returns:
        Full precision first; nothing where one batch size was trained.
    """
    return tuple(
        _fold(amp, group)
        for amp, group in _by_precision(rows).items()
        if len({row.setting.batch_size for row in group}) > 1
    )


def compare_precisions(rows: Sequence[SweepRow]) -> tuple[PrecisionRow, ...]:
    """Set mixed precision beside full, where both were trained.

    Args:
        rows: All trials.

    Returns:
        A row for each batch size of which both tell anything, smallest first.
    """
    groups = {amp: _fold(amp, group) for amp, group in _by_precision(rows).items()}
    full, mixed = groups.get(False), groups.get(True)
    if full is None or mixed is None:
        return ()
    peaks, lower = _peaks(full), _peaks(mixed)
    speeds, faster = full.images_per_s, mixed.images_per_s
    is_alike = full.source == mixed.source
    compared = []
    for batch in sorted({*peaks, *speeds} & {*lower, *faster}):
        memory = _ratio(lower.get(batch), peaks.get(batch)) if is_alike else None
        speed = _ratio(faster.get(batch), speeds.get(batch))
        if memory is not None or speed is not None:
            compared.append(PrecisionRow(batch, memory, speed))
    return tuple(compared)


def _by_precision(rows: Sequence[SweepRow]) -> dict[bool | None, list[SweepRow]]:
    """Trials whose batch size is known, those in full precision first."""
    groups: dict[bool | None, list[SweepRow]] = {}
    for row in sorted(rows, key=lambda row: bool(row.setting.amp)):
        if row.setting.batch_size is not None:
            groups.setdefault(row.setting.amp, []).append(row)
    return groups


def _fold(amp: bool | None, rows: Sequence[SweepRow]) -> BatchSizes:
    told = [row for row in rows if row.is_measured and row.memory_peak_bytes]
    sources = {row.memory_source for row in told}
    # peaks of a card and of the RAM are no one line
    source = CARD_MEMORY if CARD_MEMORY in sources else next(iter(sources), None)
    told = [row for row in told if row.memory_source == source]
    if source != CARD_MEMORY:
        told = _without_loading(told)
    points = [_point(row) for row in told]
    speeds = _fastest(rows)
    return BatchSizes(
        amp=amp,
        source=source,
        memory=fit_batch_memory(points),
        rules=compare_rules(points),
        card=_card(told),
        without_room=tuple(
            sorted(
                {row.setting.batch_size or 0 for row in rows if _ran_out(row)}
                - {point.batch_size for point in points}
            )
        ),
        images_per_s=speeds,
        knee=find_knee(speeds) if len(speeds) > 1 else None,
    )


def _without_loading(rows: list[SweepRow]) -> list[SweepRow]:
    """Trials whose images are loaded by workers, where they tell enough.

    Without workers the training process itself holds images as large as their files.
    """
    beside = [row for row in rows if row.setting.num_workers]
    sizes = {row.setting.batch_size for row in beside}
    return beside if sizes == {row.setting.batch_size for row in rows} else rows


def _point(row: SweepRow) -> MemoryPoint:
    pixels = row.largest_batch_pixels
    return MemoryPoint(
        batch_size=row.setting.batch_size or 0,
        peak_bytes=row.memory_peak_bytes or 0,
        pixels=None if pixels is None else float(pixels),
        static_bytes=row.static_bytes,
        gradient_bytes=row.gradient_bytes or 0,
    )


def _card(rows: Sequence[SweepRow]) -> CardRoom | None:
    """The smallest room of all cards that were trained on."""
    rooms = [
        CardRoom(row.card_bytes, row.card_beside_bytes or 0)
        for row in rows
        if row.card_bytes and row.memory_source == CARD_MEMORY
    ]
    return min(rooms, key=lambda room: room.room_bytes, default=None)


def _fastest(rows: Sequence[SweepRow]) -> dict[int, float]:
    speeds: dict[int, float] = {}
    for row in rows:
        batch, speed = row.setting.batch_size, row.images_per_s
        if batch is not None and speed is not None and is_eligible(row):
            speeds[batch] = max(speed, speeds.get(batch, 0.0))
    return dict(sorted(speeds.items()))


def _ran_out(row: SweepRow) -> bool:
    return row.status == 'out_of_memory'


def _peaks(group: BatchSizes) -> dict[int, int]:
    return {row.batch_size: row.peak_bytes for row in group.rules}


def _ratio(value: float | None, other: float | None) -> float | None:
    return value / other if value and other else None
