"""Splits GPU memory by use, and tells if a larger batch raised its peak; no I/O.

``nvidia-smi`` shows what the driver gave to all processes: tensors in use, what the
allocator of PyTorch keeps of those that are gone, and the CUDA context with the
libraries' own.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mmgpu_hooks.judge import thresholds
from mmgpu_hooks.judge.columns import Column, known
from mmgpu_hooks.judge.memory import find_growth_of
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema.text import Text, phrase

_GIB = 2**30
_GREW = 1.02
"""Smallest ratio of GPU memory peaks that counts as growth (allocators round up)."""
_EARLY_SHARE = 0.1
"""Share (0 to 1) of a run, from its start, whose GPU memory peak is the baseline."""


class PeakGrowth(NamedTuple):
    """Last growth of the GPU memory peak after the first tenth of a training run."""

    iteration: int
    """Last iteration of the log interval in which the GPU memory peak grew."""
    ratio: float
    """Ratio of the GPU memory peak to that of the first tenth of the run."""
    is_largest_batch: bool | None
    """True if the interval in which the memory peak grew had the largest batch so far.

    Largest by pixels or by boxes; ``None`` where neither is known.
    """
    pixels: int | None
    """Pixels of the largest batch when the GPU memory peak grew; ``None``: unknown."""
    height: int | None
    """Height in pixels of the largest batch's images when the GPU memory peak grew."""
    width: int | None
    boxes: int | None
    """Largest number of boxes in a batch when the GPU memory peak last grew."""


class CardFigures(NamedTuple):
    """Bytes of GPU memory by use: tensors, allocator cache, CUDA context and others."""

    peak_bytes: int
    """Bytes of the tensors in use at the peak of GPU memory."""
    kept_bytes: int | None
    """Bytes that PyTorch's allocator keeps beyond the peak of the tensors in use."""
    beside_bytes: int | None
    """Bytes of GPU memory that the CUDA context and other processes use, if known."""
    total_bytes: int | None
    growth: PeakGrowth | None
    is_leak: bool
    """True if bytes of live GPU tensors grow steadily with the iterations."""

    @property
    def used_bytes(self) -> int:
        """Bytes used on the GPU: tensors, allocator cache and others, where known."""
        return self.peak_bytes + (self.kept_bytes or 0) + (self.beside_bytes or 0)

    @property
    def is_notable(self) -> bool:
        """True if 80 % of the GPU memory is used, or its peak grew by a fifth."""
        used, total = self.used_bytes, self.total_bytes
        is_full = total is not None and used >= thresholds.FULL_SHARE * total
        ratio = self.growth.ratio if self.growth else 1.0
        return is_full or ratio >= thresholds.BURST_RATIO

    @property
    def sentence(self) -> Text:
        """Sentence on GPU memory: ``nvidia-smi shows 15.8 GiB = 9.1 in use + ...``."""
        parts = [
            phrase('{peak_memory_gib:.1f} in use at the peak', **self._in_gib('peak'))
        ]
        if self.kept_bytes is not None:
            parts.append(
                phrase(
                    '{kept_memory_gib:.1f} that the allocator keeps',
                    **self._in_gib('kept'),
                )
            )
        if self.beside_bytes is not None:
            parts.append(
                phrase(
                    '{beside_memory_gib:.1f} CUDA context and other programs',
                    **self._in_gib('beside'),
                )
            )
        facts = {
            **self._in_gib('used'),
            'total_bytes': self.total_bytes,
            'parts_gib': tuple(parts),
            'growth': self._phrase_growth(),
        }
        if self.beside_bytes is None:
            if self.total_bytes:
                return phrase(
                    'The allocator holds {used_memory_gib:.1f} GiB of {total_bytes} = '
                    '{parts_gib:+}; {growth}.',
                    **facts,
                )
            return phrase(
                'The allocator holds {used_memory_gib:.1f} GiB = {parts_gib:+}; '
                '{growth}.',
                **facts,
            )
        if self.total_bytes:
            return phrase(
                'nvidia-smi shows {used_memory_gib:.1f} GiB of {total_bytes} = '
                '{parts_gib:+}; {growth}.',
                **facts,
            )
        return phrase(
            'nvidia-smi shows {used_memory_gib:.1f} GiB = {parts_gib:+}; {growth}.',
            **facts,
        )

    def _in_gib(self, name: str) -> dict[str, float]:
        """Returns one part of GPU memory in GiB, as ``{'<name>_memory_gib': GiB}``."""
        return {f'{name}_memory_gib': getattr(self, f'{name}_bytes') / _GIB}

    def _phrase_growth(self) -> Text:
        if self.is_leak:
            return phrase('live tensors grow with every iteration: a leak (MG404)')
        growth = self.growth
        if growth is None:
            return phrase('its peak has not grown since the first tenth of the run')
        if growth.is_largest_batch is None:
            return phrase(
                'it grew by iteration {iteration:,}; the size of batches is unknown',
                growth,
            )
        if not growth.is_largest_batch:
            return phrase(
                'it grew by iteration {iteration:,}, whose batches were no larger than '
                'others before',
                growth,
            )
        sizes = []
        if growth.height is not None and growth.width is not None:
            sizes.append(
                phrase(
                    '{height_pixels} x {width_pixels}',
                    height_pixels=growth.height,
                    width_pixels=growth.width,
                )
            )
        elif growth.pixels is not None:
            sizes.append(phrase('{pixels:count} pixels', growth))
        if growth.boxes is not None:
            sizes.append(phrase('{boxes}', growth))
        return phrase(
            'it grew by iteration {iteration:,}, whose largest batch was the largest '
            'so far ({sizes:,}): no leak',
            growth,
            sizes=tuple(sizes),
        )


def find_card_figures(run: Run) -> CardFigures | None:
    """Splits GPU memory into bytes per use; ``None`` if no peak was recorded."""
    figures = run.figures
    peak, reserved = figures.gpu_mem_peak_bytes, figures.gpu_mem_reserved_bytes
    if peak is None:
        return None
    kept = None if reserved is None else max(reserved - peak, 0)
    used = figures.gpu.mem_used_bytes if figures.gpu else None
    beside = None
    # the driver is asked now and then, and may have missed the fullest moment
    if used is not None and reserved is not None and used >= reserved:
        beside = used - reserved
    leak = find_growth_of(
        run.every, 'cuda_memory.allocated_bytes', least_bytes=2**20, least_share=0.0
    )
    return CardFigures(
        peak_bytes=peak,
        kept_bytes=kept,
        beside_bytes=beside,
        total_bytes=run.meta.gpu.memory_total_bytes if run.meta.gpu else None,
        growth=find_peak_growth(run),
        is_leak=leak is not None,
    )


def find_peak_growth(run: Run) -> PeakGrowth | None:
    """Finds the last growth of the GPU memory peak after the first tenth of the run.

    Returns:
        ``None`` where it has not grown since.
    """
    read = run.every.having('gpu_mem_peak_bytes')
    peaks, ends = read.column('gpu_mem_peak_bytes'), read.column('iteration')
    if len(peaks) < 2:
        return None
    begun = run.meta.start_iteration
    early = max(int((ends - begun <= _EARLY_SHARE * (ends[-1] - begun)).sum()), 1)
    most = np.maximum.accumulate(peaks)
    first = max(most[early - 1], 1.0)
    grown = np.flatnonzero(most[early:] > _GREW * most[early - 1 : -1]) + early
    if not len(grown) or most[-1] <= _GREW * first:
        return None
    row = int(grown[-1])
    pixels = _BatchSize.of(read.column('largest_batch_pixels'), row)
    boxes = _BatchSize.of(read.column('most_boxes'), row)
    is_larger = [size.is_larger for size in (pixels, boxes) if size is not None]
    names = 'largest_batch_height', 'largest_batch_width'
    sides = [read.column(name)[row] for name in names]
    height, width = (None if np.isnan(side) else int(side) for side in sides)
    return PeakGrowth(
        iteration=int(ends[row]),
        ratio=float(most[-1] / first),
        is_largest_batch=any(is_larger) if is_larger else None,
        pixels=None if pixels is None else pixels.now,
        height=height,
        width=width,
        boxes=None if boxes is None else boxes.now,
    )


class _BatchSize(NamedTuple):
    """Size of the largest batch in a log interval, in pixels or in boxes."""

    now: int
    is_larger: bool
    """True if no earlier log interval had as large a batch."""

    @classmethod
    def of(cls, sizes: Column, row: int) -> _BatchSize | None:
        """Reads the largest batch size of a log interval; ``None`` if unknown."""
        if np.isnan(sizes[row]):
            return None
        before = known(sizes[:row]).max(initial=0.0)
        return cls(int(sizes[row]), bool(int(sizes[row]) > before))
