"""The setting ``num_workers``: processes that load batches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from mmgpu_hooks.judge import thresholds
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.model.bounds import MOST_WORKERS
from mmgpu_hooks.model.prospect import Prospect
from mmgpu_hooks.recommend.job import (
    SAME_SPEED,
    VALIDATION,
    Choice,
    Decision,
    Job,
    Setting,
)
from mmgpu_hooks.schema.text import Text, phrase, sentences
from mmgpu_hooks.schema.values import Whole

OWN_CORE_GAIN = 0.1
"""Smallest time saving (0.1: 10 %) for workers that share the training process's core.

Sharing one is what simulations know least about.
"""

EACH_UP_TO = 12
"""Number of workers up to which each number is tried; then in steps of 25 %."""


class NumWorkers(Setting):
    """Chooses the smallest number of workers nearly as fast as the fastest."""

    name = 'num_workers'
    noun = phrase('Numbers of loader workers')
    values = Whole(0)
    most = MOST_WORKERS
    is_bounded = True
    rules = ('MG101',)

    def read(self, run: Run) -> int:
        """Reads the number of workers that the run had."""
        return run.meta.loader.num_workers or 0

    def candidates(self, job: Job, at: Choice) -> list[int]:
        """Lists worker counts from 0 to the host's limit, the run's own included."""
        most, own = job.cap(at).workers, at[self.name]
        return sorted({*_list_counts(most), *([own] if own <= most else [])})

    def apply(self, job: Job, then: Prospect, new: int, slip: float = 0.0) -> Prospect:
        """Predicts training time (a `Prospect`) with another number of workers."""
        return replace(then, loader=replace(then.loader, num_workers=new))

    def handicap(self, job: Job, new: int) -> float:
        """Returns the share of training time ``new`` workers must save to be chosen."""
        if job.run.waiting_share:
            return 0.0
        workload = job.base.workload
        step_s = workload.step.mean_s
        own_cores = round(workload.step_cpu_s / step_s) if step_s > 0.0 else 0
        spare = max(math.floor(workload.usable_cores) - own_cores, 1)
        return OWN_CORE_GAIN if new > spare else 0.0

    def may_be_needed(self, job: Job, at: Choice) -> bool:
        """True if fewer workers may be needed, as they outnumber the usable cores."""
        return bool(at[self.name] > job.cores)

    def is_needed(self, job: Job, before: Choice, after: Choice) -> bool:
        """True if the run has more workers than cores, and fewer are as fast.

        Only where that was measured: workers that wait for storage are right to
        outnumber the cores.
        """
        run, old, new = job.run, before[self.name], after[self.name]
        cpu_s, delay_s = run.figures.worker_cpu_s, run.figures.worker_run_delay_s
        if not new < old > job.cores:
            return False
        if not cpu_s or not delay_s or not job.base.workload.is_batch_time_known:
            return False
        is_waiting = delay_s / (cpu_s + delay_s) >= thresholds.RUN_DELAY_PROBLEM
        if run.waiting_share or not is_waiting:
            return False
        return job.at(after).total_s <= job.at(before).total_s * (1 + SAME_SPEED)

    def why(self, decision: Decision) -> Text:
        """Explains a change of ``num_workers`` by the predicted iteration times.

        The limit of the host is in it, too.
        """
        job, run = decision.job, decision.job.run
        old, new = decision.old[self.name], decision.new[self.name]
        then, cap = job.at(decision.new), job.cap(decision.new)
        now_s = run.figures.iter_s
        if then.workload.measured_batch_size is not None:
            now_s = job.at({**decision.new, self.name: old}).iter_s
        facts = {
            'now_s': now_s,
            'old_workers': old,
            'step_s': then.workload.ready_s,
            'then_s': then.iter_s,
            'new_workers': new,
            'most_workers': cap.workers,
            'limit': cap.reason,
        }
        reason = phrase(
            'An iteration takes {now_s} with {old_workers}, of which the step needs '
            '{step_s}; it is predicted to take {then_s} with {new_workers} (the host '
            'carries at most {most_workers:d}: {limit}).',
            **facts,
        )
        if job.loader == VALIDATION:
            reason = phrase(
                'An iteration of validation takes {now_s} with {old_workers}, of which '
                'the step needs {step_s}; it is predicted to take {then_s} with '
                '{new_workers} (the host carries at most {most_workers:d}: {limit}).',
                **facts,
            )
        if self._is_crowd(decision):
            crowd = phrase(
                '{workers} share {cores:d} usable cores and waited '
                '{worker_run_delay_s} per batch for one.',
                run.figures,
                workers=old,
                cores=job.cores,
            )
            return sentences(reason, crowd)
        if new > job.cores:
            outnumber = phrase(
                'They wait for {waiting_share} of a batch, so they may outnumber the '
                '{cores:d} usable cores: PyTorch will warn about this many workers, '
                'which is expected here.',
                waiting_share=run.waiting_share,
                cores=job.cores,
            )
            return sentences(reason, outnumber)
        return reason

    def cite(self, decision: Decision) -> tuple[str, ...]:
        """Returns the codes of rules like MG105 that ask for other ``num_workers``."""
        return ('MG105', 'MG106') if self._is_crowd(decision) else self.rules

    def _is_crowd(self, decision: Decision) -> bool:
        old, new = decision.old[self.name], decision.new[self.name]
        is_waiting = bool(decision.job.run.figures.worker_run_delay_s)
        return is_waiting and new < old > decision.job.cores


def _list_counts(most: int) -> Iterator[int]:
    yield 0
    count = 1
    while count < most:
        yield count
        count += max(count // 4, 1) if count >= EACH_UP_TO else 1
    if most > 0:
        yield most
