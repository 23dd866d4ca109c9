"""What the rules look at: one run's figures and the loader model made of them."""

from __future__ import annotations

from dataclasses import dataclass

from mmgpu_hooks.diagnosis.saves import judge_saves
from mmgpu_hooks.diagnosis.thresholds import (
    DATA_WAIT_PROBLEM,
    EXTERNAL_LOAD,
    MIN_ITERATIONS,
)
from mmgpu_hooks.modeling.loader_bound import LoaderModel, fit_loader
from mmgpu_hooks.records import RunSummary, SaveJudgement, SaveRecord


@dataclass(frozen=True)
class Facts:
    """Inputs of every rule."""

    summary: RunSummary
    model: LoaderModel | None
    """``None`` when the run is too short or its loader is unknown."""
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
        loop wait at least once in W iterations, so a mean above the 95th percentile is
        made of rare stalls. ``fetching``: the wait is the training thread's own CPU. No
        setting of the loader cures the last two.
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
    def blocked_share(self) -> float | None:
        """Share of loading one batch in which nothing ran: storage, locks."""
        model = self.model
        if model is None or model.occupancy_is_bound or model.worker_cpu_s is None:
            return None
        if model.occupancy_s <= 0:
            return None
        return max(1.0 - model.worker_cpu_s / model.occupancy_s, 0.0)

    @property
    def is_cpu_the_wall(self) -> bool:
        """Whether the CPU floor, not the step, limits even an ideal loader."""
        model = self.model
        if model is None or not self.summary.iter_s:
            return False
        if self.is_contradictory:
            return False
        return model.cpu_floor_s > max(model.ready_s, 0.9 * self.summary.iter_s)

    @property
    def is_contradictory(self) -> bool:
        """Whether more CPU is said to be needed than the iterations had time for."""
        if self.model is None or self.summary.iter_s is None:
            return False
        return self.model.cpu_floor_s > 1.15 * self.summary.iter_s

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


def fold_facts(summary: RunSummary) -> Facts:
    """Make the rules' inputs out of one run's figures."""
    loader = summary.run.loader
    measured = Facts(summary, None)
    model = None
    if (
        loader.num_workers is not None
        and summary.data_wait_s is not None
        and summary.step_s is not None
        and summary.hooks_s is not None
        and measured.is_enough
    ):
        model = fit_loader(
            num_workers=loader.num_workers,
            data_wait_s=summary.data_wait_s,
            ready_s=summary.step_s + summary.hooks_s,
            data_wait_cpu_share=summary.data_wait_cpu_share,
            worker_cpu_s=summary.worker_cpu_s,
            worker_run_delay_s=summary.worker_run_delay_s,
            main_cpu_s=summary.main_cpu_s,
            usable_cores=_free_cores(summary),
            is_starved=measured.is_starved,
        )
    saves = judge_saves(
        summary.save_records, summary.save_aftermaths, summary.run.host, loader
    )
    return Facts(summary, model, saves)


def _free_cores(summary: RunSummary) -> float | None:
    """Usable cores, less what others leave of the host; at least half a core."""
    host = summary.run.host
    if host.usable_cores is None or host.logical_cpus is None:
        return host.usable_cores
    left = host.logical_cpus - (summary.external_cpu_cores or 0.0)
    return min(host.usable_cores, max(left, 0.5))
