"""One rank's run as it was recorded: its records, and its intervals as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mmgpu_hooks.judge.columns import Column, Intervals
from mmgpu_hooks.schema.recorded import RunRecord
from mmgpu_hooks.schema.run import RunEvidence


class RecordedRun:
    """All that one rank recorded.

    *Steady* intervals leave the first one out, which holds lazy initialisation, as
    soon as there are others.

    Args:
        evidence: As read back, or as a test makes it.
        other_ranks: Of the same run, where they were read.
    """

    def __init__(
        self, evidence: RunEvidence, other_ranks: Sequence[RecordedRun] = ()
    ) -> None:
        self.evidence = evidence
        self.other_ranks = other_ranks
        self.every = Intervals(evidence.intervals)
        """All intervals: extremes and sums are taken over these."""
        self.steady = self.every.after(1) if len(self.every) > 1 else self.every
        """Means are taken over these."""
        self.path = evidence.path
        self.intervals = evidence.intervals
        self.end = evidence.end
        self.save_records = evidence.save_records
        self.save_aftermaths = evidence.save_aftermaths
        self.validations = evidence.validations
        self.notes = evidence.notes

    @property
    def meta(self) -> RunRecord:
        """The run record: settings, limits of the host, identity."""
        return self.evidence.run

    @property
    def status(self) -> str:
        """``completed``, ``interrupted``, ``failed``, or ``killed`` (no end record)."""
        return self.end.status if self.end else 'killed'

    @property
    def cores_had(self) -> float | None:
        """Usable cores as the run had them; another start may give it more."""
        return self.evidence.cores_had or self.meta.host.cores_had

    def column(self, field: str, key: str | None = None) -> Column:
        """One figure of each interval, as `Intervals.column`."""
        return self.every.column(field, key)

    def since(self, number: int, until: int | None = None) -> RecordedRun:
        """From one of its intervals on, as a run of its own that did not end.

        Args:
            number: Intervals to leave out.
            until: The last iteration; by default all.
        """
        intervals = self.intervals[number:]
        if until is not None:
            intervals = tuple(
                interval for interval in intervals if interval.iteration <= until
            )
        part = replace(self.evidence, intervals=intervals, end=None)
        return RecordedRun(part, self.other_ranks)
