"""The closed-form bound on an iteration, and the loader behind it.

With W workers an iteration takes at least::

    T >= max(G, S / W, (P + m) / C)

G is the step with its hooks and what fetching a ready batch costs the training thread
(the loop with data at hand), S the seconds a worker
is busy with one batch, P the CPU part of S, m the CPU of the training process per
iteration, C the usable cores. Without workers the training process loads by itself
and T = G + S. The bound is optimistic: it knows no variance and no queueing.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LoaderModel:
    """What one run tells about its loader; seconds per iteration or batch."""

    ready_s: float
    """G: step, hooks and the fetching of a ready batch."""
    occupancy_s: float
    """S: a worker's time for one batch."""
    occupancy_is_bound: bool
    """Whether S is only an upper limit (workers were not always busy)."""
    worker_cpu_s: float | None
    """P; ``None`` when worker CPU could not be read."""
    main_cpu_s: float | None
    """m; ``None`` when unknown."""
    usable_cores: float | None
    """C; ``None`` when unknown."""

    @property
    def cpu_floor_s(self) -> float:
        """``(P + m) / C``: no number of workers is faster; 0 when unknown."""
        if self.worker_cpu_s is None or not self.usable_cores:
            return 0.0
        return (self.worker_cpu_s + (self.main_cpu_s or 0.0)) / self.usable_cores

    @property
    def floor_s(self) -> float:
        """The iteration if data cost nothing but its CPU."""
        return max(self.ready_s, self.cpu_floor_s)


def fit_loader(
    *,
    num_workers: int,
    data_wait_s: float,
    ready_s: float,
    data_wait_cpu_share: float | None,
    worker_cpu_s: float | None,
    worker_run_delay_s: float | None,
    main_cpu_s: float | None,
    usable_cores: float | None,
    is_starved: bool,
) -> LoaderModel:
    """Read the loader's costs off one setting.

    Without workers the wait *is* the loading. With workers that starve the loop all
    of them are busy all the time, so one batch takes ``W`` iterations; when the loop
    does not wait, that is only an upper limit, and the CPU they burned the lower.

    Args:
        num_workers: Workers of the run.
        data_wait_s: Steady wait per iteration.
        ready_s: Step and hooks per iteration.
        data_wait_cpu_share: CPU share of the training thread inside the waits.
        worker_cpu_s: CPU of all workers per batch.
        worker_run_delay_s: Time workers waited for a core, per batch: contention is
            no cost of the loader's own, and the bound has a term for it.
        main_cpu_s: CPU of the training process per iteration, waits left out.
        usable_cores: Cores of this rank.
        is_starved: Whether the waits mean that all workers were busy all the time.
    """
    iter_s = data_wait_s + ready_s
    if num_workers == 0:
        share = data_wait_cpu_share
        return LoaderModel(
            ready_s=ready_s,
            occupancy_s=data_wait_s,
            occupancy_is_bound=False,
            worker_cpu_s=None if share is None else share * data_wait_s,
            main_cpu_s=main_cpu_s,
            usable_cores=usable_cores,
        )
    # CPU of the training thread inside a wait is fetching, which no worker takes over
    fetch_s = (data_wait_cpu_share or 0.0) * data_wait_s
    busy_s = num_workers * iter_s - (worker_run_delay_s or 0.0)
    return LoaderModel(
        ready_s=ready_s + fetch_s,
        occupancy_s=max(busy_s, worker_cpu_s or 0.0),
        occupancy_is_bound=not is_starved,
        worker_cpu_s=worker_cpu_s,
        main_cpu_s=main_cpu_s,
        usable_cores=usable_cores,
    )


def predict_iter_s(model: LoaderModel, num_workers: int) -> float:
    """Bound on the iteration time with ``num_workers``, in seconds."""
    if num_workers == 0:
        return model.ready_s + model.occupancy_s
    return max(model.floor_s, model.occupancy_s / num_workers)
