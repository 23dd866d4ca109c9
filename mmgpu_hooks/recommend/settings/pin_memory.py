"""The setting ``pin_memory``: batches in page-locked memory for the GPU."""

from __future__ import annotations

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.recommend.job import Job, Setting
from mmgpu_hooks.schema.text import Text, phrase
from mmgpu_hooks.schema.values import Flag


class PinMemory(Setting):
    """Setting ``pin_memory``, never changed: no run times the copy to the GPU."""

    name = 'pin_memory'
    noun = phrase('Page-locked batches')
    values = Flag(is_optional=True)

    def read(self, run: Run) -> bool | None:
        """Reads ``pin_memory`` of the run's DataLoader."""
        return run.meta.loader.pin_memory

    def why_unknown(self, job: Job, new: bool | None) -> Text | None:
        """Says that the run did not time copies to the GPU, as a sweep would."""
        # nothing is copied where no GPU trains
        is_alike = bool(new) == bool(job.old[self.name])
        if is_alike or job.run.meta.device != 'cuda':
            return None
        return phrase(
            'What pin_memory makes of a copy to the GPU was not measured in this run: '
            'mmgpu sweep --pin-memory off on measures it.'
        )

    def advise(self, run: Run) -> Text | None:
        """Phrases advice on pinned memory for a GPU training that waits for data."""
        is_waiting = run.meta.device == 'cuda' and run.is_data_bound
        if not is_waiting or run.meta.loader.pin_memory:
            return None
        return phrase(
            'pin_memory=True of the loader makes copies to the GPU faster, with '
            'model.data_preprocessor.non_blocking=True; what it would save was not '
            'measured.'
        )
