"""What a run's validations tell of their own loader. Pure.

A validation is to its loader what an epoch is to the train loader: workers start, and
batch follows batch. So validations become a run of their own, each of them an interval,
and what judges a run judges them.
"""

from __future__ import annotations

from msgspec import structs

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema.recorded import IntervalRecord, ValidationRecord
from mmgpu_hooks.schema.run import RunEvidence

_MOST_S = 366 * 86400.0
"""Of one validation: a longer one was never measured."""


_ALIKE = (
    *('iterations', 'data_wait', 'step', 'iter', 'first_waits', 'first_wait_s'),
    *('data_wait_cpu_s', 'process_cpu_s', 'batch_bytes', 'batch_tensors', 'workers'),
)
"""Fields that an interval has as well."""


def make_validation_run(run: Run) -> Run | None:
    """Facts of the loader of validation, all of them measured while it was used.

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
        run.run,
        loader=alike[-1].loader,
        loop='epoch',
        max_epochs=count_validations(run),
        max_iters=None,
        start_iteration=0,
        interval_iterations=alike[-1].iterations,
        # what of its CPU spins for a GPU is not known here: none is the careful guess
        device='cpu',
    )
    intervals = tuple(_as_interval(one, n, run) for n, one in enumerate(alike))
    made = Run(RunEvidence(path='', run=record, intervals=intervals))
    if record.host.ranks > 1:
        # a validation knows the CPU of all others alone: training tells ranks apart
        external = run.external_cpu_cores, run.why_no_external
        return made.altered(external_cpu_cores=external[0], why_no_external=external[1])
    known = [one for one in alike if one.other_cpu_s is not None]
    used_s = sum(one.other_cpu_s or 0.0 for one in known)
    wall_s = sum(one.wall_s for one in known)
    return made.altered(external_cpu_cores=used_s / wall_s if wall_s else None)


def find_alike(run: Run) -> list[ValidationRecord]:
    """Validations that can be judged by: as the newest of them, and possible at all."""
    seen = [one for one in run.validations if _is_possible(one)]
    return [one for one in seen if one.loader == seen[-1].loader]


def is_timed(one: ValidationRecord) -> bool:
    """True if its seconds can be: evidence is a text file, and may have been edited."""
    return 0.0 < one.wall_s < _MOST_S


def _is_possible(one: ValidationRecord) -> bool:
    """True if a record has all of its iterations, and time for them."""
    wait, step = one.data_wait, one.step
    if not is_timed(one) or not wait or not step or not one.iter:
        return False
    # the parts were added up in another order
    is_less = one.first_wait_s <= wait.total_s * (1.0 + 1e-9)
    is_within = 0.0 < wait.total_s + step.total_s <= one.wall_s
    return is_less and is_within and 0 < one.iterations >= one.first_waits


def count_validations(run: Run) -> int:
    """How often the whole training validates, at the rate at which it has so far."""
    record, seen = run.run, len(run.validations)
    whole = record.max_iters
    if record.loop == 'epoch' and record.max_epochs and record.loader.batches_per_epoch:
        whole = record.max_epochs * record.loader.batches_per_epoch
    expected = round(seen * whole / run.iterations) if whole and run.iterations else 0
    return max(expected, seen, 1)


def _as_interval(one: ValidationRecord, number: int, run: Run) -> IntervalRecord:
    """A possible validation as an interval of the run that its loader has."""
    wait, step = one.data_wait, one.step
    assert wait is not None and step is not None
    usual_s = max(wait.total_s - one.first_wait_s, 0.0)
    usual_s /= max(one.iterations - one.first_waits, 1)
    startup_s = max(one.first_wait_s - one.first_waits * usual_s, 0.0)
    return IntervalRecord(
        iteration=(number + 1) * one.iterations,
        epoch=number + 1,
        elapsed_s=0.0,
        duration_s=wait.total_s + step.total_s,
        ledger_s={
            'data_wait': wait.total_s - startup_s,
            'step': step.total_s,
            'hooks': 0.0,
            'startup': startup_s,
        },
        process_rss_bytes=run.process_rss_bytes,
        **{name: getattr(one, name) for name in _ALIKE},
    )
