"""Checks if ``/dev/shm`` has room for the batches of new DataLoader workers."""

from __future__ import annotations

from pathlib import Path

from mmgpu_hooks.measure.host import read_file_system
from mmgpu_hooks.model.workload import DEFAULT_PREFETCH
from mmgpu_hooks.schema.recorded import TunedSettings

SHARED_MARGIN = 2
"""Ratio of shared memory that must be free to what new workers' batches take.

Batches are taken to be as large as the last one that was counted."""

_SHARED = Path('/dev/shm')


class SharedRoom:
    """Room in shared memory for the batches that a DataLoader's workers load ahead.

    PyTorch ends a worker that finds it full.

    Args:
        ranks: Of the training, which switch at one iteration.
    """

    def __init__(self, ranks: int = 1) -> None:
        self._ranks = ranks
        self._batch_bytes = 0

    def note_batch(self, size: int | None) -> None:
        """Notes a batch's bytes, to estimate the shared memory new workers will need.

        Args:
            size: Bytes of its tensors; ``None`` where they were not counted.
        """
        self._batch_bytes = size or self._batch_bytes

    def fits_beside(self, new: TunedSettings) -> bool:
        """True if new workers' batches fit into shared memory beside the old ones'."""
        free = read_file_system(_SHARED).free_bytes
        needed = self._count_bytes(new)
        return free is None or not needed or free > SHARED_MARGIN * needed

    def fits_alone(self, old: TunedSettings, new: TunedSettings) -> bool:
        """True if new workers' batches fit into shared memory once the old ones end.

        Args:
            old: Present settings of the loader.
            new: The settings to switch to.
        """
        shared = read_file_system(_SHARED)
        free, total = shared.free_bytes, shared.total_bytes
        needed, most_held = self._count_bytes(new), self._count_bytes(old)
        if free is None or total is None or needed <= most_held:
            return True
        # the old ones hold less than they may where training waits for its loader
        held = min(total - free, most_held)
        return free + held > needed and free > SHARED_MARGIN * (needed - most_held)

    def _count_bytes(self, settings: TunedSettings) -> int:
        """Returns the most bytes of shared memory that batches loaded ahead take.

        0 where batches were not counted.
        """
        ahead = settings.num_workers * (settings.prefetch_factor or DEFAULT_PREFETCH)
        return self._ranks * ahead * self._batch_bytes
