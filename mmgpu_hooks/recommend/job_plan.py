"""What the whole job is that a setting is chosen for. Pure: no I/O, no clock."""

from __future__ import annotations

import statistics

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.model.job import JobPlan
from mmgpu_hooks.schema import SaveRecord


def plan_job(run: Run) -> JobPlan:
    """The training as it was configured, not only what of it was recorded.

    A loop that counts iterations says nothing of its epochs (a sampler may have no
    end): it is one long epoch.
    """
    record = run.run
    iterations, epochs = max(run.iterations, 1), 1
    if record.loop == 'epoch' and record.loader.batches_per_epoch:
        iterations = record.loader.batches_per_epoch
        epochs = record.max_epochs or max(run.epoch_starts, 1)
    elif record.max_iters:
        iterations = record.max_iters
    saves = 0
    if run.iterations:
        saves = round(run.saves / run.iterations * iterations * epochs)
    cpu_s, wait_s = _save_costs(run)
    return JobPlan(iterations, epochs, saves, cpu_s, wait_s)


def count_starts(run: Run) -> int:
    """How often the loader starts over, as far as known.

    A loop that counts iterations tells nothing of its epochs, so only what was seen
    counts.
    """
    record = run.run
    if record.loop == 'epoch' and record.max_epochs:
        return record.max_epochs
    return run.epoch_starts


def _save_costs(run: Run) -> tuple[float, float]:
    """CPU of one save, and what it waits for anything but a core."""
    told = [save for save in run.save_records if save.error is None]
    known = [save for save in told if save.cpu_s is not None]
    if known:
        return (
            statistics.median(save.cpu_s or 0.0 for save in known),
            statistics.median(_blocked_s(save) for save in known),
        )
    if not run.saves:
        return 0.0, 0.0
    # as if it never waited for a core: what workers do to it stays unknown
    return 0.0, run.ledger_s.get('checkpoint_save', 0.0) / run.saves


def _blocked_s(save: SaveRecord) -> float:
    return save.blocked_s or 0.0
