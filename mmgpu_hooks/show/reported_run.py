"""One run as a report has it: what is said of it, and what that rests on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from mmgpu_hooks.schema import PlainRun, SaveRecord
from mmgpu_hooks.show.recommendation import Answer


class PredictedSetting(Protocol):
    """What a report shows of a prediction; the fields are those of the record."""

    @property
    def num_workers(self) -> int: ...
    @property
    def prefetch_factor(self) -> int | None: ...
    @property
    def iter_time_s(self) -> float: ...
    @property
    def iter_time_low_s(self) -> float: ...
    @property
    def iter_time_high_s(self) -> float: ...
    @property
    def images_per_s(self) -> float | None: ...


@dataclass(frozen=True)
class ReportedRun:
    """A run, judged; its answer has a summary, or it has a plain log, never both."""

    label: str
    """Short, and different from those of the runs beside it."""
    answer: Answer
    plain: PlainRun | None = None
    predictions: tuple[PredictedSetting, ...] = ()
    """Of settings of the loader, the run's own among them."""
    why_no_predictions: str = 'This version does not predict other settings of a run.'

    @property
    def saves(self) -> tuple[SaveRecord, ...]:
        """Each save taken apart, of the rank that makes them for all."""
        summary = self.answer.summary
        return summary.save_records if summary is not None else ()

    @property
    def why_no_evidence(self) -> str:
        """For the panels that stay empty without it."""
        return (
            'This run has no evidence of GPUEfficiencyHook, only the log of MMEngine.'
        )


def label_runs(paths: list[str]) -> list[str]:
    """The last parts of the paths, as many as tell them apart.

    Args:
        paths: Folders or files, in the order of the runs.
    """
    parts = [path.rstrip('/').split('/') for path in paths]
    for depth in range(1, max((len(part) for part in parts), default=0) + 1):
        labels = ['/'.join(part[-depth:]) for part in parts]
        if len(set(labels)) == len(labels):
            return labels
    return [f'{number}: {path}' for number, path in enumerate(paths, start=1)]
