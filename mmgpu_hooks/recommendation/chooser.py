"""Goes from a run's setting of the loader to the one that is recommended. Pure."""

from __future__ import annotations

import math
from dataclasses import replace

from mmgpu_hooks.diagnosis.facts import Facts
from mmgpu_hooks.diagnosis.thresholds import (
    BEYOND_GAIN,
    BLOCKED_PROBLEM,
    RUN_DELAY_PROBLEM,
    STARTUP_MEASURABLE,
    WORTHWHILE_GAIN,
)
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.recommendation.changes import Decision
from mmgpu_hooks.recommendation.choice import (
    PREFETCHES,
    SAME_SPEED,
    Setting,
    choose_prefetch,
    choose_workers,
    iter_s,
    job_s,
    most_gain,
    predict_gain,
)
from mmgpu_hooks.recommendation.job_plan import count_starts, plan_job
from mmgpu_hooks.recommendation.worker_cap import (
    DEFAULT_PREFETCH,
    WorkerCap,
    cap_workers,
    workers_per_core,
)
from mmgpu_hooks.schema import JobPlan, LoaderWorkload


class Chooser:
    """Goes from the old setting to the new one, a step at a time.

    Args:
        facts: The run.
        workload: What it tells.
        beyond_cores: Whether workers that mostly wait may outnumber the usable cores.
    """

    def __init__(
        self, facts: Facts, workload: LoaderWorkload, beyond_cores: bool = False
    ) -> None:
        self._facts, self._workload = facts, workload
        self._summary = facts.summary
        self._plan: JobPlan = plan_job(facts.summary)
        self._old = read_setting(facts.summary)
        self._prefetch = max(self._old.prefetch_factor, DEFAULT_PREFETCH)
        share = facts.blocked_share or 0.0
        self._waiting = share if share >= BLOCKED_PROBLEM else 0.0
        self._beyond_cores = beyond_cores
        self._allowed = self._waiting if beyond_cores else 0.0
        self._cap = self._cap_workers(self._prefetch)

    def _cap_workers(self, prefetch_factor: int) -> WorkerCap:
        return cap_workers(self._summary, prefetch_factor, waiting=self._allowed)

    def decide(self) -> Decision:
        """The new setting, which is the old one where nothing is worth a change."""
        new = self._choose_workers()
        new = replace(new, persistent_workers=self._persist(new))
        new = self._choose_prefetch(new)
        return Decision(
            facts=self._facts,
            workload=self._workload,
            cap=self._cap,
            old=self._old,
            new=new,
            old_iter_s=iter_s(self._workload, self._old),
            new_iter_s=iter_s(self._workload, new),
            gain=predict_gain(self._workload, self._old, new, self._plan)
            if new != self._old
            else None,
            beyond_cores=self._beyond_cores,
        )

    def advise_beyond(self, new: Setting) -> list[str]:
        """What workers beyond the cores would give, where loading mostly waits.

        PyTorch warns of so many, so they are set only where that was asked for.
        """
        if not self._facts.is_starved or not self._waiting or self._allowed:
            return []
        if new.num_workers < self._cap.workers or self._cap.workers < self._cores:
            return []
        cap = cap_workers(self._summary, self._prefetch, waiting=self._waiting)
        per_core = workers_per_core(self._waiting)
        more = choose_workers(self._workload, new, self._plan, cap.workers, per_core)
        gain = predict_gain(self._workload, new, more, self._plan)
        if more.num_workers <= self._cores or not gain.is_backed(BEYOND_GAIN):
            return []
        return [
            f'Workers mostly wait, so more of them than the {self._cores} usable cores '
            f'would pay: num_workers={more.num_workers} is predicted to save '
            f'{100 * gain.share:.0f} % of the time ({100 * gain.low:.0f} to '
            f'{100 * gain.high:.0f} %). PyTorch warns of so many, and they take memory '
            'and get into the way of saves; faster storage is the better cure. '
            '--beyond-cores sets it.'
        ]

    def _choose_workers(self) -> Setting:
        old = self._old
        if most_gain(self._workload, old, self._plan) < WORTHWHILE_GAIN:
            crowded = old.num_workers > self._cores
            if not crowded:
                return old
        # how many there are is judged as if they lived on
        lasting = Setting(old.num_workers, self._prefetch, persistent_workers=True)
        fewest = choose_workers(
            self._workload,
            lasting,
            self._plan,
            self._cap.workers,
            workers_per_core(self._waiting),
        ).num_workers
        new = replace(
            old,
            num_workers=fewest,
            persistent_workers=old.persistent_workers and fewest > 0,
        )
        judged = replace(new, persistent_workers=self._persist(new))
        if not (self._is_worthwhile(old, judged) or self._is_crowd(new)):
            return old
        deeper = replace(new, prefetch_factor=self._prefetch)
        return deeper if self._is_worthwhile(new, deeper) else new

    @property
    def _cores(self) -> int:
        return max(math.floor(self._summary.run.host.usable_cores or 0.0), 1)

    def _is_worthwhile(self, before: Setting, after: Setting) -> bool:
        if before == after:
            return False
        gain = predict_gain(self._workload, before, after, self._plan)
        return gain.is_backed(WORTHWHILE_GAIN)

    def _is_crowd(self, new: Setting) -> bool:
        """Whether the old workers only take turns on too few cores.

        Only where that was measured: workers that wait for storage are right to
        outnumber the cores.
        """
        cpu_s, delay_s = self._summary.worker_cpu_s, self._summary.worker_run_delay_s
        old = self._old
        if new.num_workers >= old.num_workers or old.num_workers <= self._cores:
            return False
        if not cpu_s or not delay_s or not self._workload.is_occupancy_known:
            return False
        if delay_s / (cpu_s + delay_s) < RUN_DELAY_PROBLEM:
            return False
        now_s = job_s(self._workload, old, self._plan)
        return job_s(self._workload, new, self._plan) <= now_s * (1 + SAME_SPEED)

    def _persist(self, new: Setting) -> bool:
        """Whether workers should live through all epochs."""
        loader = self._summary.run.loader
        if new.num_workers == 0 or loader.persistent_workers is not False:
            return new.persistent_workers
        if new.num_workers > self._cap.workers:
            return False
        if not loader.num_workers:
            return count_starts(self._summary) >= 2
        return starts_cost(self._facts)

    def _choose_prefetch(self, new: Setting) -> Setting:
        """More batches ahead, where they help by themselves."""
        if new.num_workers == 0:
            return new
        if most_gain(self._workload, new, self._plan) < WORTHWHILE_GAIN:
            return new
        factors = [
            factor
            for factor in PREFETCHES
            if factor > new.prefetch_factor
            and self._cap_workers(factor).workers >= new.num_workers
        ]
        if not factors:
            return new
        deeper = choose_prefetch(self._workload, new, self._plan, factors)
        return deeper if self._is_worthwhile(new, deeper) else new


def read_setting(summary: Run) -> Setting:
    """The run's own setting."""
    loader = summary.run.loader
    workers = loader.num_workers or 0
    return Setting(
        workers,
        loader.prefetch_factor or DEFAULT_PREFETCH,
        bool(loader.persistent_workers) and workers > 0,
    )


def starts_cost(facts: Facts) -> bool:
    """Whether starting workers anew was measured to cost something."""
    share = facts.run_share(facts.summary.startup_s)
    return count_starts(facts.summary) >= 2 and share >= STARTUP_MEASURABLE
