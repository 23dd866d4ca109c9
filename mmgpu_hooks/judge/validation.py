"""Defines a `Run` whose intervals are validations, to judge validation's loader.

A validation is to its loader what an interval is to the train loader: workers make
batches, and batch follows batch.

So the records of validations are put, as they are, in the place of the intervals, and
the same code makes figures of them and judges them; what no validation records is
unknown. Nothing is carried over from training but what its workers hold. Their waits
come from their own loader's iterator; a step is all between a batch in hand and the
next one asked for, whatever the loop calls its iterations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from msgspec import structs

from mmgpu_hooks.judge.columns import Intervals
from mmgpu_hooks.judge.figures import RunFigures, summarize_run
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.schedule import Schedule
from mmgpu_hooks.judge.validation_parts import is_timed
from mmgpu_hooks.schema.recorded import IntervalRecord, RunRecord, ValidationRecord
from mmgpu_hooks.schema.run import RunEvidence

_UNKNOWN = {*IntervalRecord.__struct_fields__} - {*ValidationRecord.__struct_fields__}
"""Fields of an interval record that no validation record has."""


class ValidationLoops(Run):
    """Subclass of `Run` in which each interval is one validation of a training run.

    Its settings are those of their loader, its ledger that of their loops alone,
    metrics left out. Saves, the card and all else of the training are unknown here.

    Args:
        training: The run that validates.
        records: Some of its validations, with the same loader.
    """

    def __init__(self, training: Run, records: Sequence[ValidationRecord]) -> None:
        meta = _describe_loops(training, records[-1])
        super().__init__(
            RunEvidence(
                path=training.path,
                run=meta,
                intervals=(),
                tuned=training.evidence.tuned_of('validation'),
                cores_had=training.evidence.cores_had,
            )
        )
        self.training, self.records = training, records
        self.every = self.latest = Intervals(records, _UNKNOWN)
        self.steady = self.every.after(1) if len(records) > 1 else self.every

    @cached_property
    def figures(self) -> RunFigures:
        """Statistics of the validation loops; process memory is that of training."""
        training = self.training.figures
        if self.meta.host.ranks > 1:
            # a validation knows the CPU of all others alone: training tells ranks apart
            external_cores = training.external_cpu_cores
            why_unknown = training.why_no_external
        else:
            external_cores, why_unknown = _find_external_cores(self.records), None
        return replace(
            summarize_run(self),
            external_cpu_cores=external_cores,
            why_no_external=why_unknown,
            # workers of both loaders are forked from the same process
            process_rss_bytes=training.process_rss_bytes,
        )

    def since(self, number: int, until: int | None = None) -> ValidationLoops:
        """Copies the validation loops without the first ``number`` validations.

        Args:
            number: Validations to leave out.
            until: Iterations of training that were done when the last one began; by
                default all.
        """
        records = [
            record
            for record in self.records[number:]
            if until is None or record.iteration <= until
        ]
        return ValidationLoops(self.training, records)


def _describe_loops(training: Run, newest: ValidationRecord) -> RunRecord:
    """Makes a run record of all validations, each counted as one epoch."""
    return structs.replace(
        training.meta,
        loader=newest.loader,
        # a pass through its loader is an epoch; there are as many as validations
        loop='epoch',
        max_epochs=count_validations(training),
        max_iters=None,
        start_iteration=0,
        interval_iterations=newest.iterations,
        # the training is built by then
        build_s=0.0,
        # what of its CPU spins for a GPU is not known here: none is the careful guess
        device='cpu',
    )


def find_loops(run: Run) -> ValidationLoops | None:
    """Makes `ValidationLoops` of the newest validations with the same loader settings.

    Args:
        run: One rank's, with its validations.

    Returns:
        ``None`` when no validation was recorded whose iterations were seen.
    """
    alike = find_alike(run)
    return ValidationLoops(run, alike) if alike else None


def _find_external_cores(records: Sequence[ValidationRecord]) -> float | None:
    """Computes the mean number of cores other programs used during validations."""
    used_s = wall_s = 0.0
    for record in records:
        if record.other_cpu_s is not None:
            used_s += record.other_cpu_s
            wall_s += record.wall_s
    return used_s / wall_s if wall_s else None


def find_alike(run: Run) -> list[ValidationRecord]:
    """Lists valid validation records with the newest one's loader settings."""
    seen = [record for record in run.validations if is_possible(record)]
    return [record for record in seen if record.loader == seen[-1].loader]


def is_possible(record: ValidationRecord) -> bool:
    """True if a validation record is complete and its times are plausible."""
    wait, step = record.data_wait, record.step
    if not is_timed(record) or not wait or not step or not record.iter:
        return False
    # the parts were added up in another order
    is_less = record.first_wait_s <= wait.total_s * (1.0 + 1e-9)
    is_within = 0.0 < wait.total_s + step.total_s <= record.wall_s
    return is_less and is_within and 0 < record.iterations >= record.first_waits


def count_validations(run: Run) -> int:
    """Counts the validations of a whole training: as planned, or by the rate so far."""
    record, seen = run.meta, len(run.validations)
    schedule = Schedule.of(record)
    planned = None if schedule is None else schedule.count_validations(0)
    if planned is not None:
        return max(planned, seen, 1)
    whole = record.max_iters
    if record.loop == 'epoch' and record.max_epochs and record.loader.batches_per_epoch:
        whole = record.max_epochs * record.loader.batches_per_epoch
    expected = (
        round(seen * whole / run.figures.iterations)
        if whole and run.figures.iterations
        else 0
    )
    return max(expected, seen, 1)
