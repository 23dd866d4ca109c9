"""The loader of a run's validations, as a run of its own. Pure.

A validation is to its loader what an epoch is to the train loader: workers start, and
batch follows batch. So validations become a run of their own, each of them an interval,
and what judges a run judges them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from msgspec import structs

from mmgpu_hooks.judge.figures import summarize_run
from mmgpu_hooks.judge.recorded import RecordedRun
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.schedule import Schedule
from mmgpu_hooks.judge.validation_parts import is_timed
from mmgpu_hooks.schema.recorded import IntervalRecord, ValidationRecord
from mmgpu_hooks.schema.run import RunEvidence

_ALIKE = (
    'iterations',
    'data_wait',
    'step',
    'iter',
    'first_waits',
    'first_wait_s',
    'data_wait_cpu_s',
    'process_cpu_s',
    'batch_bytes',
    'batch_tensors',
    'workers',
)
"""Fields that an interval has as well."""


def make_validation_run(run: Run) -> Run | None:
    """Make a run of validations, each of them an interval.

    ``ledger_s`` and ``duration_s`` are those of the loops alone, metrics left out.

    Args:
        run: One rank's figures, with its validations.

    Returns:
        ``None`` when no validation was recorded whose iterations were seen.
    """
    alike = find_alike(run)
    if not alike:
        return None
    record = structs.replace(
        run.meta,
        loader=alike[-1].loader,
        loop='epoch',
        max_epochs=count_validations(run),
        max_iters=None,
        start_iteration=0,
        interval_iterations=alike[-1].iterations,
        # what of its CPU spins for a GPU is not known here: none is the careful guess
        device='cpu',
    )
    intervals = tuple(
        _as_interval(validation, number, run) for number, validation in enumerate(alike)
    )
    evidence = RunEvidence(
        path='', run=record, intervals=intervals, cores_had=run.evidence.cores_had
    )
    figures = summarize_run(RecordedRun(evidence))
    if record.host.ranks > 1:
        # a validation knows the CPU of all others alone: training tells ranks apart
        external_cores = run.figures.external_cpu_cores
        why_unknown = run.figures.why_no_external
    else:
        external_cores, why_unknown = _find_external_cores(alike), None
    figures = replace(
        figures, external_cpu_cores=external_cores, why_no_external=why_unknown
    )
    return Run(evidence, figures=figures)


def _find_external_cores(records: Sequence[ValidationRecord]) -> float | None:
    """Cores that other programs used during validations, mean over their time."""
    known = [record for record in records if record.other_cpu_s is not None]
    used_s = math.fsum(record.other_cpu_s or 0.0 for record in known)
    wall_s = math.fsum(record.wall_s for record in known)
    return used_s / wall_s if wall_s else None


def find_alike(run: Run) -> list[ValidationRecord]:
    """Valid validation records with the same loader settings as the newest one."""
    seen = [record for record in run.validations if _is_possible(record)]
    return [record for record in seen if record.loader == seen[-1].loader]


def _is_possible(record: ValidationRecord) -> bool:
    """True if a record has all of its iterations, and time for them."""
    wait, step = record.data_wait, record.step
    if not is_timed(record) or not wait or not step or not record.iter:
        return False
    # the parts were added up in another order
    is_less = record.first_wait_s <= wait.total_s * (1.0 + 1e-9)
    is_within = 0.0 < wait.total_s + step.total_s <= record.wall_s
    return is_less and is_within and 0 < record.iterations >= record.first_waits


def count_validations(run: Run) -> int:
    """Validations of the whole training, as planned, or at the rate of those so far."""
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


def _as_interval(record: ValidationRecord, number: int, run: Run) -> IntervalRecord:
    """A possible validation as an interval of the run that its loader has."""
    wait, step = record.data_wait, record.step
    assert wait is not None and step is not None
    usual_s = max(wait.total_s - record.first_wait_s, 0.0)
    usual_s /= max(record.iterations - record.first_waits, 1)
    startup_s = max(record.first_wait_s - record.first_waits * usual_s, 0.0)
    return IntervalRecord(
        iteration=(number + 1) * record.iterations,
        epoch=number + 1,
        elapsed_s=0.0,
        duration_s=wait.total_s + step.total_s,
        ledger_s={
            'data_wait': wait.total_s - startup_s,
            'step': step.total_s,
            'hooks': 0.0,
            'startup': startup_s,
        },
        process_rss_bytes=run.figures.process_rss_bytes,
        **{name: getattr(record, name) for name in _ALIKE},
    )
