"""Goes from a run's setting of the loader to the one that is recommended."""

from __future__ import annotations

import math
from dataclasses import replace

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.thresholds import (
    RUN_DELAY_PROBLEM,
    STARTUP_MEASURABLE,
    WORTHWHILE_GAIN,
)
from mmgpu_hooks.model.workload import Workload
from mmgpu_hooks.recommend.changes import Decision, phrase_gain, phrase_setting
from mmgpu_hooks.recommend.choice import (
    SAME_SPEED,
    Setting,
    choose_workers,
    count_starts,
    iter_s,
    job_s,
    least_of,
    most_gain,
    plan_job,
    predict_gain,
    without_other_load,
)
from mmgpu_hooks.recommend.worker_cap import DEFAULT_PREFETCH, cap_workers

PREFETCHES = (2, 4, 8)


class Chooser:
    """Goes from the old setting to the new one, a step at a time.

    Args:
        run: The run.
        workload: What it says.
    """

    def __init__(self, run: Run, workload: Workload) -> None:
        self._run, self._workload = run, workload
        self._plan = plan_job(run)
        self._old = read_setting(run)
        self._cores = max(math.floor(run.run.host.usable_cores or 0.0), 1)
        self._prefetch = max(self._old.prefetch_factor, DEFAULT_PREFETCH)
        self._cap = cap_workers(run, self._prefetch)

    def decide(self) -> Decision:
        """The new setting, which is the old one where none is surely better."""
        proposed = self.propose()
        doubt = self._doubt(proposed)
        if doubt is None:
            return proposed
        kept_s = proposed.old_iter_s
        return replace(
            proposed, new=self._old, new_iter_s=kept_s, gain=None, doubt=doubt
        )

    def propose(self) -> Decision:
        """The setting that is best by all that is known, however sure that is."""
        old, workload = self._old, self._workload
        new = self._choose_workers()
        new = replace(new, persistent_workers=self._persist(new))
        new = self._choose_prefetch(new)
        gain = predict_gain(workload, old, new, self._plan) if new != old else None
        return Decision(
            run=self._run,
            workload=workload,
            cap=self._cap,
            old=old,
            new=new,
            old_iter_s=iter_s(workload, old),
            new_iter_s=iter_s(workload, new),
            gain=gain,
        )

    def _doubt(self, proposed: Decision) -> str | None:
        """Why a setting is advice and not written; ``None`` when it is sure, and empty
        when it is not worth a word.

        Its gain must hold beside the other load of the run and without it. Workers that
        only take turns are more than the host carries, which needs no gain.
        """
        old, new, gain = self._old, proposed.new, proposed.gain
        quiet = without_other_load(self._workload)
        if gain is None or self._is_crowd(quiet, new):
            return None
        said = f'{phrase_setting(old, new)} would save {phrase_gain(gain)}'
        if gain.low <= 0.0 and gain.share < WORTHWHILE_GAIN:
            return ''
        if gain.low <= 0.0:
            return f'{said}, which is too unsure to be written.'
        alone = predict_gain(quiet, old, new, self._plan)
        if alone.low > 0.0:
            return None
        return (
            f'{said} beside the other programs on this host, and '
            f'{phrase_gain(alone)} without them: it is right only while they run, and '
            'not written.'
        )

    def _choose_workers(self) -> Setting:
        old = self._old
        is_worth = most_gain(self._workload, old, self._plan) >= WORTHWHILE_GAIN
        if not is_worth and old.num_workers <= self._cores:
            return old
        # how many there are is judged as if they lived on
        fewest = choose_workers(
            self._workload,
            Setting(old.num_workers, self._prefetch, persistent_workers=True),
            self._plan,
            self._cap.workers,
            are_waiting=self._run.waiting_share > 0.0,
        )
        persists = old.persistent_workers and fewest > 0
        new = replace(old, num_workers=fewest, persistent_workers=persists)
        judged = replace(new, persistent_workers=self._persist(new))
        if not (
            self._is_worthwhile(old, judged) or self._is_crowd(self._workload, new)
        ):
            return old
        deeper = replace(new, prefetch_factor=self._prefetch)
        return deeper if self._is_worthwhile(new, deeper) else new

    def _is_worthwhile(self, before: Setting, after: Setting) -> bool:
        if before == after:
            return False
        gain = predict_gain(self._workload, before, after, self._plan)
        return gain.is_backed(WORTHWHILE_GAIN)

    def _is_crowd(self, workload: Workload, new: Setting) -> bool:
        """Whether the old workers only take turns on too few cores.

        Only where that was measured: workers that wait for storage are right to
        outnumber the cores.
        """
        run, old = self._run, self._old
        cpu_s, delay_s = run.worker_cpu_s, run.worker_run_delay_s
        if new.num_workers >= old.num_workers or old.num_workers <= self._cores:
            return False
        if not cpu_s or not delay_s or not workload.is_batch_time_known:
            return False
        if run.waiting_share or delay_s / (cpu_s + delay_s) < RUN_DELAY_PROBLEM:
            return False
        now_s = job_s(workload, old, self._plan)
        return job_s(workload, new, self._plan) <= now_s * (1 + SAME_SPEED)

    def _persist(self, new: Setting) -> bool:
        """Whether workers should live through all epochs."""
        loader = self._run.run.loader
        if new.num_workers == 0 or loader.persistent_workers is not False:
            return new.persistent_workers
        if new.num_workers > self._cap.workers:
            return False
        if not loader.num_workers:
            return count_starts(self._run) >= 2
        return starts_cost(self._run)

    def _choose_prefetch(self, new: Setting) -> Setting:
        """More batches ahead, where they help by themselves."""
        if most_gain(self._workload, new, self._plan) < WORTHWHILE_GAIN:
            return new
        factors = [
            factor
            for factor in PREFETCHES
            if factor > new.prefetch_factor
            and cap_workers(self._run, factor).workers >= new.num_workers
        ]
        if new.num_workers == 0 or not factors:
            return new
        ahead = (replace(new, prefetch_factor=factor) for factor in factors)
        times = {
            one.prefetch_factor: job_s(self._workload, one, self._plan)
            for one in (new, *ahead)
        }
        deeper = replace(new, prefetch_factor=least_of(times))
        return deeper if self._is_worthwhile(new, deeper) else new


def read_setting(run: Run) -> Setting:
    """The run's own setting."""
    loader = run.run.loader
    workers = loader.num_workers or 0
    return Setting(
        workers,
        loader.prefetch_factor or DEFAULT_PREFETCH,
        bool(loader.persistent_workers) and workers > 0,
    )


def starts_cost(run: Run) -> bool:
    """Whether starting workers anew was measured to cost something."""
    share = run.run_share(run.startup_s)
    return count_starts(run) >= 2 and share >= STARTUP_MEASURABLE
