"""One rank's run as it was recorded: its records, and its intervals as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from msgspec import structs

from mmgpu_hooks.judge.columns import Column, Intervals
from mmgpu_hooks.model.workload import DEFAULT_PREFETCH
from mmgpu_hooks.schema.recorded import RunRecord, TunedRecord, TunedSettings
from mmgpu_hooks.schema.run import RunEvidence


class RecordedRun:
    """Recorded training run of one rank, its intervals as numpy columns.

    *Steady* intervals leave the first one out, which holds lazy initialisation, as
    soon as there are others. A run that was tuned is judged by what it ended with:
    steady intervals begin after the last change of its loader.

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
        """All log intervals of the run, the warm-up included."""
        self.last_switch = next(reversed(evidence.switches), None)
        """Last change of train loader settings in training; ``None`` without one."""
        self.latest = _select_latest(self.every, self.last_switch)
        """Log intervals since the train loader's settings last changed."""
        self.steady = self.latest.after(1) if len(self.latest) > 1 else self.latest
        """Log intervals over which means are taken: after the warm-up."""
        self.path = evidence.path
        self.intervals = evidence.intervals
        self.end = evidence.end
        self.save_records = evidence.save_records
        self.after_saves = evidence.after_saves
        self.validations = evidence.validations
        self.notes = evidence.notes

    @cached_property
    def meta(self) -> RunRecord:
        """First record of the run's evidence file: settings, host limits, identity.

        The settings are those that the loader has now, where it was tuned.
        """
        switch = self.last_switch
        if switch is None:
            return self.evidence.run
        return _with_settings(self.evidence.run, switch.new)

    @property
    def begun_with(self) -> TunedSettings:
        """Settings of the train loader at the start of training, as configured."""
        if self.evidence.switches:
            return self.evidence.switches[0].old
        return read_settings(self.evidence.run)

    @property
    def status(self) -> str:
        """Way the run ended: ``completed``, ``interrupted``, ``failed``, ``killed``."""
        return self.end.status if self.end else 'killed'

    @property
    def cores_had(self) -> float | None:
        """Number of cores that the run could use when it was recorded."""
        return self.evidence.cores_had or self.meta.host.cores_had

    def column(self, field: str, key: str | None = None) -> Column:
        """Returns a field of all log intervals as an array; NaN is unknown."""
        return self.every.column(field, key)

    def since(self, number: int, until: int | None = None) -> RecordedRun:
        """Copies the run without its first log intervals and without its end record.

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


def read_settings(run: RunRecord) -> TunedSettings:
    """Reads the tunable settings of the train loader from a run record."""
    loader = run.loader
    return TunedSettings(
        num_workers=loader.num_workers or 0,
        prefetch_factor=loader.prefetch_factor if loader.num_workers else None,
        persistent_workers=bool(loader.persistent_workers and loader.num_workers),
        worker_nice=run.worker_nice,
    )


def _with_settings(run: RunRecord, settings: TunedSettings) -> RunRecord:
    loader = structs.replace(
        run.loader,
        num_workers=settings.num_workers,
        prefetch_factor=settings.prefetch_factor,
        persistent_workers=settings.persistent_workers,
    )
    nice = settings.worker_nice
    return structs.replace(
        run, loader=loader, worker_nice=run.worker_nice if nice is None else nice
    )


def _select_latest(every: Intervals, switch: TunedRecord | None) -> Intervals:
    """Selects log intervals with all batches loaded by the newest loader settings."""
    if switch is None:
        return every
    # the old workers' last batches come after it
    owed = switch.old.num_workers * (switch.old.prefetch_factor or DEFAULT_PREFETCH)
    begun = every.column('iteration') - every.column('iterations')
    return every.where(begun >= switch.iteration + owed)
