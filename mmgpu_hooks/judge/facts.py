"""What the rules look at: one run's figures and the workload made of them."""

from __future__ import annotations

from dataclasses import dataclass

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.saves import judge_saves
from mmgpu_hooks.judge.thresholds import (
    BLOCKED_PROBLEM,
    DATA_WAIT_PROBLEM,
    EXTERNAL_LOAD,
    MIN_ITERATIONS,
)
from mmgpu_hooks.judge.workload import fit_workload
from mmgpu_hooks.model.floors import cpu_s, free_cores, ready_s
from mmgpu_hooks.schema import (
    LoaderWorkload,
    NoPrediction,
    SaveJudgement,
    SaveRecord,
)


@dataclass(frozen=True)
class Facts:
    """Inputs of every rule."""

    summary: Run
    workload: LoaderWorkload | None
    """``None`` when the run does not tell it; ``untold`` says why."""
    untold: str | None = None
    saves: tuple[SaveJudgement, ...] = ()
    """In the order of the summary's ``save_records``."""

    @property
    def is_enough(self) -> bool:
        """Whether enough steady iterations, of measurable length, were recorded."""
        return bool(self.summary.iter_s) and (
            self.summary.steady_iterations >= MIN_ITERATIONS
        )

    @property
    def data_wait_share(self) -> float | None:
        """Share of a steady iteration spent waiting for data."""
        wait_s, iter_s = self.summary.data_wait_s, self.summary.iter_s
        if wait_s is None or not iter_s:
            return None
        return wait_s / iter_s

    @property
    def is_data_bound(self) -> bool:
        """Whether waiting for data is a problem in steady iterations."""
        share = self.data_wait_share
        return self.is_enough and share is not None and share >= DATA_WAIT_PROBLEM

    @property
    def wait_cause(self) -> str | None:
        """Why the loop of a data-bound run waits; ``None`` when it is none.

        ``starved``: the loader cannot keep up. ``stalls``: starving workers make the
        loop wait at least once in W iterations, so a mean above the 95th percentile of
        a usual interval is made of rare stalls. ``fetching``: the wait is the training
        thread's own CPU. No setting of the loader cures the last two.
        """
        summary, wait_s = self.summary, self.summary.data_wait_s
        if not self.is_data_bound or wait_s is None or not summary.iter_s:
            return None
        if not summary.run.loader.num_workers:
            return 'starved'
        p95_s = summary.data_wait_p95_s
        if p95_s is not None and p95_s < wait_s:
            return 'stalls'
        share = summary.data_wait_cpu_share or 0.0
        if (1.0 - share) * wait_s / summary.iter_s < DATA_WAIT_PROBLEM:
            return 'fetching'
        return 'starved'

    @property
    def is_starved(self) -> bool:
        """Whether the loop waits because the loader cannot keep up."""
        return self.wait_cause == 'starved'

    @property
    def is_stalled(self) -> bool:
        """Whether rare stalls are all that is known of the waits.

        Where loading was measured inside the workers, the workload tells more.
        """
        loader = self.summary.loader
        is_measured = loader is not None and loader.occupancy_s is not None
        return self.wait_cause == 'stalls' and not is_measured

    @property
    def headspace_pct(self) -> float | None:
        """At most this much faster, in per cent, if data cost no time at all.

        Over the whole run, starts of the loader included, and what workers hold the
        step up by being on its cores.
        """
        ledger_s, whole_s = self.summary.ledger_s, self.summary.duration_s
        waits_s = ledger_s.get('data_wait', 0.0) + ledger_s.get('startup', 0.0)
        if self.workload is not None:
            waits_s += self.workload.iterations * self.workload.held_up_s
        if not self.is_enough or not 0.0 <= waits_s < whole_s:
            return None
        return 100.0 * waits_s / (whole_s - waits_s)

    @property
    def blocked_share(self) -> float | None:
        """Share of loading one batch in which nothing ran: storage, locks."""
        workload = self.workload
        if workload is None or not workload.is_occupancy_known:
            return None
        loader, delay_s = self.summary.loader, self.summary.worker_run_delay_s or 0.0
        whole_s, cpu_s = workload.occupancy.mean_s, workload.batch_cpu.mean_s
        if loader and loader.occupancy_s is not None and loader.batch_cpu_s is not None:
            # waiting for a core is no waiting for storage
            whole_s, cpu_s = loader.occupancy_s - delay_s, loader.batch_cpu_s
        return max(1.0 - cpu_s / whole_s, 0.0) if whole_s > 0.0 else 0.0

    @property
    def waiting_share(self) -> float:
        """``blocked_share`` where it is at least half of a batch, else 0.

        Workers that wait so much may outnumber the cores.
        """
        share = self.blocked_share or 0.0
        return share if share >= BLOCKED_PROBLEM else 0.0

    @property
    def confined_cpus(self) -> int | None:
        """CPUs that the workers are confined to; ``None`` when they are not."""
        loader, host = self.summary.loader, self.summary.run.host
        confined = loader.affinity_cpus if loader else None
        if confined is None or host.affinity_cpus is None:
            return None
        return confined if confined < host.affinity_cpus else None

    @property
    def unbinding(self) -> str | None:
        """How to undo what bound the process; ``None`` when nothing did."""
        host = self.summary.run.host
        if host.unbound_cpus is None:
            return None
        if host.bound_by is None:
            return (
                'Remove the call of sched_setaffinity in the training script or in a '
                'module that it imports.'
            )
        return f'Unset {host.bound_by} where the training is started.'

    @property
    def cpu_floor_s(self) -> float | None:
        """The CPU of an iteration over the cores that are free for it.

        Never more than the run itself took.
        """
        if self.workload is None:
            return None
        floor_s = cpu_s(self.workload) / self.free_cores
        return min(floor_s, self.summary.iter_s or floor_s)

    @property
    def free_cores(self) -> float:
        """Usable cores, less those that strangers want, or had at least."""
        workload, summary = self.workload, self.summary
        assert workload is not None
        free = free_cores(workload)
        if summary.iter_s and cpu_s(workload) / free > summary.iter_s:
            # the run was faster than that: it had what they did not use
            left = workload.host_cores - (summary.external_cpu_cores or 0.0)
            return min(workload.usable_cores, max(left, free))
        return free

    @property
    def is_cpu_the_wall(self) -> bool:
        """Whether the CPU floor, not the step, limits even an ideal loader."""
        floor_s, workload = self.cpu_floor_s, self.workload
        if floor_s is None or workload is None or not self.summary.iter_s:
            return False
        if not workload.num_workers:
            # one process alone does not hold its own against strangers; more would
            floor_s = cpu_s(workload) / workload.usable_cores
        return floor_s > max(ready_s(workload), 0.9 * self.summary.iter_s)

    @property
    def is_busy_host(self) -> bool:
        """Whether others took so much of the host that the figures are theirs too."""
        external = self.summary.external_cpu_cores
        logical = self.summary.run.host.logical_cpus
        return bool(external and logical and external >= EXTERNAL_LOAD * logical)

    def saves_held_by(
        self, cause: str | None
    ) -> list[tuple[SaveRecord, SaveJudgement]]:
        """Slow saves with this cause; with ``None``, those whose cause is unproven."""
        return [
            (save, judged)
            for save, judged in zip(self.summary.save_records, self.saves)
            if judged.is_slow and judged.cause == cause
        ]

    def run_share(self, seconds: float) -> float:
        """``seconds`` as a share of the whole run."""
        whole = self.summary.duration_s
        return seconds / whole if whole > 0 else 0.0

    def part_share(self, part: str) -> float:
        """Share of the whole run in one part of the time ledger."""
        return self.run_share(self.summary.ledger_s.get(part, 0.0))


def fold_facts(summary: Run) -> Facts:
    """Make the rules' inputs out of one rank's run."""
    saves = judge_saves(
        summary.save_records,
        summary.save_aftermaths,
        summary.run.host,
        summary.run.loader,
    )
    found = fit_workload(summary)
    if isinstance(found, NoPrediction):
        return Facts(summary, None, found.reason, saves)
    return Facts(summary, found, None, saves)
