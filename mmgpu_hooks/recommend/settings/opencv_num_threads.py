"""The setting ``opencv_num_threads``: threads of OpenCV in each worker."""

from __future__ import annotations

import math
from dataclasses import replace

from mmgpu_hooks.judge.cpu import WorkerThreads
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.model.prospect import Prospect
from mmgpu_hooks.model.workload import (
    MOST_DOUBLINGS,
    THREADS_ERROR,
    THREADS_WASTE,
    with_one_thread,
)
from mmgpu_hooks.recommend.job import Choice, Decision, Job, Setting
from mmgpu_hooks.schema.text import Text, phrase
from mmgpu_hooks.schema.values import Whole

ONE_THREAD = 0
"""OpenCV thread count (MMEngine's default) that makes OpenCV run sequentially."""


class OpencvNumThreads(Setting):
    """Chooses one OpenCV thread per worker if several compete for cores."""

    name = 'opencv_num_threads'
    noun = phrase('Threads of OpenCV in each worker, 0 being one')
    place = 'env_cfg.mp_cfg'
    values = Whole(0)
    most = 1024
    is_nested = True
    must_be_sure = True
    rules = ('MG115',)

    def read(self, run: Run) -> int | None:
        """Reads the number of threads that OpenCV itself reports in a worker."""
        return run.figures.loader.opencv_threads if run.figures.loader else None

    def candidates(self, job: Job, at: Choice) -> tuple[int | None, ...]:
        """Lists the run's number of threads, and one if several compete for cores."""
        own = at[self.name]
        return (own,) if _find_thrash(job.run) is None else (own, ONE_THREAD)

    def apply(
        self, job: Job, then: Prospect, new: int | None, slip: float = 0.0
    ) -> Prospect:
        """Predicts training time (a `Prospect`) without surplus threads' CPU time.

        Each doubling of threads over the cores burns some.
        """
        found = _find_thrash(job.run)
        if new == job.old[self.name] or new not in (0, 1) or found is None:
            return then
        threads = max((found.opencv or 0) / found.cores, 1.0)
        wasted = THREADS_WASTE * min(math.log2(threads), MOST_DOUBLINGS)
        # a worker that uses more than a core has all of its CPU in less time
        cpu_s = max(job.base.workload.batch_cpu.mean_s, 1e-6)
        saved = 1.0 - (1.0 - wasted) * max(found.cpu_s / cpu_s, 1.0)
        workload = with_one_thread(then.workload, saved - slip * THREADS_ERROR)
        return replace(then, workload=workload)

    def why_unknown(self, job: Job, new: int | None) -> Text | None:
        """Says why the effect of a thread count is unknown; ``None`` if it is known."""
        if new == job.old[self.name]:
            return None
        if _find_thrash(job.run) is None:
            return phrase(
                "No threads of OpenCV were found to take each other's cores in this "
                'run: what another number of them makes of a batch is unknown.'
            )
        if new not in (0, 1):
            return phrase(
                'Of threads of OpenCV only what one each makes of a batch is known.'
            )
        return None

    def why(self, decision: Decision) -> Text:
        """Phrases OpenCV threads' waits for cores, and iteration time without them."""
        job, run = decision.job, decision.job.run
        found, then = run.threads, job.at(decision.new)
        assert found is not None  # or it would not change
        return phrase(
            '{workers} run up to {threads} each on {cores:g} cores and wait {delay_s} '
            'per batch for one; an iteration now takes {now_s} and is predicted to '
            'take {then_s}.',
            found,
            now_s=run.figures.iter_s,
            then_s=then.iter_s,
        )


def _find_thrash(run: Run) -> WorkerThreads | None:
    """Returns the workers' thread figures if OpenCV threads compete, else ``None``."""
    found = run.threads
    is_thrash = found is not None and found.is_thrash and (found.opencv or 0) >= 2
    return found if is_thrash else None
