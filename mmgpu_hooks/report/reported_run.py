"""One run as a report has it: what is said of it, and what that rests on."""

from __future__ import annotations

from dataclasses import dataclass

from mmgpu_hooks.records import PlainRun, RunEvidence, SaveRecord
from mmgpu_hooks.report.recommendation import Answer


@dataclass(frozen=True)
class ReportedRun:
    """A run, judged; it has evidence or a plain log, never both."""

    label: str
    """Short, and different from those of the runs beside it."""
    answer: Answer
    evidence: RunEvidence | None = None
    """Of the rank that was judged."""
    plain: PlainRun | None = None

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
