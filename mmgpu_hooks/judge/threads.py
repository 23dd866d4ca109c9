"""Threads inside the loader's workers, and the cores that they have. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mmgpu_hooks.judge import thresholds
from mmgpu_hooks.judge.columns import largest, sum_known

if TYPE_CHECKING:
    from mmgpu_hooks.judge.run import Run


@dataclass(frozen=True)
class WorkerThreads:
    """Of a run with workers whose CPU and waits for cores were read."""

    workers: int
    threads: int
    """Most that one worker had, PyTorch's own included."""
    cores: float
    """That this rank may use."""
    cpu_s: float
    """Of a worker for one batch, all its threads."""
    delay_s: float
    """What its main thread waited for a core, per batch."""
    share: float | None
    """Of ``cpu_s``, what neither the main thread used nor those that send batches;
    ``None`` where the latter were not measured."""
    opencv: int | None
    """Threads that OpenCV says it uses in a worker."""

    @property
    def is_crowd(self) -> bool:
        """Whether they are more than the cores, and wait for them."""
        if (
            self.threads <= thresholds.OWN_THREADS
            or self.workers * self.threads <= self.cores
        ):
            return False
        return self.delay_s >= thresholds.RUN_DELAY_PROBLEM * (
            self.cpu_s + self.delay_s
        )

    @property
    def is_thrash(self) -> bool:
        """Whether threads of the workers are worth a word."""
        return self.is_crowd and (self.share or 0.0) >= thresholds.THREADS_NOTICE


def find_worker_threads(run: Run) -> WorkerThreads | None:
    """``None`` where there are no workers, or they do not show it."""
    workers, cores = run.run.loader.num_workers, run.run.host.usable_cores
    threads = largest(run.column('worker_threads'))
    cpu_s, delay_s = run.worker_cpu_s, run.worker_run_delay_s
    beside_s = sum_known(run.steady.column('workers.thread_cpu_s'))
    if not workers or not threads or not cores or not cpu_s or delay_s is None:
        return None
    if beside_s is None or not run.steady_iterations:
        return None
    sent_s = run.loader.sent_cpu_s if run.loader else None
    share = None
    if sent_s is not None:
        share = max(beside_s / run.steady_iterations - sent_s, 0.0) / cpu_s
    opencv = run.loader.opencv_threads if run.loader else None
    return WorkerThreads(workers, threads, cores, cpu_s, delay_s, share, opencv)
