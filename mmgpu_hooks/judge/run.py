"""Joins the records and statistics of one rank's run, and assesses them.

The rules, the recommendation and the reports all ask this one object. What was recorded
stands in `RecordedRun`, the figures in `RunFigures`; here is their assessment: whether
the run waits for data, why, and what is free.

A run is three things, and arrows point one way. `RecordedRun`
(``run.meta.loader.num_workers``) has any figure of its intervals as a numpy column, NaN
where it is unknown; `RunFigures` is one frozen record, made once
(``run.figures.batch_bytes``), where figures that are known together are one record
(``run.figures.per_iteration``). The assessment (``run.is_data_bound``,
``run.workload``) asks both, and nothing reads the file again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from mmgpu_hooks.judge import thresholds
from mmgpu_hooks.judge.cpu import WorkerThreads
from mmgpu_hooks.judge.figures import (
    RunFigures,
    select_worker_intervals,
    summarize_run,
)
from mmgpu_hooks.judge.host_costs import HostCost, find_host_costs
from mmgpu_hooks.judge.recorded import RecordedRun
from mmgpu_hooks.judge.saves import judge_saves
from mmgpu_hooks.judge.workload import fit_workload
from mmgpu_hooks.model.workload import Workload
from mmgpu_hooks.schema.errors import NoPredictionError
from mmgpu_hooks.schema.judged import SaveJudgement
from mmgpu_hooks.schema.run import RunEvidence, read_evidence
from mmgpu_hooks.schema.text import Text, phrase

_NOTHING = Text('')


class TransformCost(NamedTuple):
    """Mean seconds of one transform of the pipeline, over all samples timed."""

    name: str
    """Class name of the pipeline's transform."""
    image_s: float
    """Mean seconds of a transform per image, images that skipped it included."""


class _FittedWorkload(NamedTuple):
    """Fitted loading and step times of a run, or the reason why there are none."""

    workload: Workload | None
    why_unknown: Text = _NOTHING
    """Reason why a run's loading and step times could not be fitted; may be empty."""


class Run(RecordedRun):
    """Recorded training run of one rank, with its statistics and their assessment.

    Args:
        evidence: As read back, or as a test makes it.
        other_ranks: Of the same run, where they were read.
        figures: In place of those that follow from the evidence.
        workload: In place of the one that is fitted to evidence and figures.
    """

    def __init__(
        self,
        evidence: RunEvidence,
        other_ranks: Sequence[RecordedRun] = (),
        *,
        figures: RunFigures | None = None,
        workload: Workload | None = None,
    ) -> None:
        super().__init__(evidence, other_ranks)
        self._given_figures, self._given_workload = figures, workload

    @classmethod
    def read(cls, path: Path) -> Run:
        """Reads one rank's evidence file.

        Raises:
            EvidenceError: As `read_evidence`.
        """
        return cls(read_evidence(path))

    def replaced(
        self, *, figures: RunFigures | None = None, workload: Workload | None = None
    ) -> Run:
        """Copies the run with the given statistics, or given loading and step times."""
        return Run(
            self.evidence,
            self.other_ranks,
            figures=figures or self._given_figures,
            workload=workload or self._given_workload,
        )

    def since(self, number: int, until: int | None = None) -> Run:
        """Copies the run without its first intervals, its statistics computed anew."""
        part = super().since(number, until)
        return Run(part.evidence, part.other_ranks)

    @cached_property
    def figures(self) -> RunFigures:
        """Statistics of the run: times, memory, CPU seconds, GPU utilisation."""
        return self._given_figures or summarize_run(self)

    @cached_property
    def transforms(self) -> list[TransformCost]:
        """Mean seconds of each pipeline transform, the most expensive first."""
        loader, seconds = self.figures.loader, Counter[str]()
        if loader is None or not loader.timed_samples:
            return []
        for costs_s in select_worker_intervals(self).values('workers.transforms_s'):
            seconds.update(costs_s or {})
        return [
            TransformCost(name, sum_s / loader.timed_samples)
            for name, sum_s in seconds.most_common()
            if sum_s
        ]

    @cached_property
    def _fitted(self) -> _FittedWorkload:
        try:
            if self._given_workload is not None:
                return _FittedWorkload(self._given_workload)
            return _FittedWorkload(fit_workload(self, self.figures))
        except NoPredictionError as error:
            return _FittedWorkload(None, error.said)

    @cached_property
    def workload(self) -> Workload | None:
        """Loading and step times that predictions are based on, or ``None``."""
        return self._fitted.workload

    @property
    def why_no_workload(self) -> Text:
        """Reason why the run allows no predictions; empty if it allows them."""
        return self._fitted.why_unknown

    @cached_property
    def threads(self) -> WorkerThreads | None:
        """Number of threads of the DataLoader workers, and their use of cores.

        ``None`` where there are no workers, or they do not show it.
        """
        workers, cores = self.meta.loader.num_workers, self.meta.host.usable_cores
        figures, loader = self.figures, self.figures.loader
        threads, beside_s = figures.worker_threads, figures.worker_thread_cpu_s
        cpu_s, delay_s = figures.worker_cpu_s, figures.worker_run_delay_s
        if not workers or not threads or not cores or not cpu_s or delay_s is None:
            return None
        if beside_s is None or not figures.steady_iterations:
            return None
        sent_s = loader.sent_cpu_s if loader else None
        share = None
        if sent_s is not None:
            share = max(beside_s / figures.steady_iterations - sent_s, 0.0) / cpu_s
        return WorkerThreads(
            workers=workers,
            threads=threads,
            cores=cores,
            cpu_s=cpu_s,
            delay_s=delay_s,
            share=share,
            opencv=loader.opencv_threads if loader else None,
        )

    @cached_property
    def host_costs(self) -> dict[str, HostCost]:
        """Host CPU seconds that each inactive optimisation would save, by name."""
        return find_host_costs(self, self.figures)

    def is_worth_sparing(self, cost: HostCost) -> bool:
        """True if iterations wait for host work that an optimisation can save.

        Where the loop waits for data, or the card is busy all the time, nothing that
        the training thread does sets the speed.
        """
        iter_s, gpu = self.figures.iter_s, self.figures.gpu
        if not iter_s or not self.figures.is_enough or self.hides_host_work:
            return False
        share = cost.saved_s / iter_s
        if cost.is_measured:
            return share >= thresholds.MEASURED_SAVING_WORTH and not cost.is_covered
        busy_pct = 0.0 if gpu is None else gpu.util_pct or 0.0
        is_full = busy_pct >= thresholds.GPU_FULL_PCT
        return share >= thresholds.ESTIMATED_SAVING_WORTH and not is_full

    @property
    def hides_host_work(self) -> bool:
        """True if training waits for workers, so that less host work saves no time.

        Without workers, loading and training take turns, and where the wait is the
        training thread's own work on ready batches, it is host work itself.
        """
        is_beside = bool(self.meta.loader.num_workers)
        return self.is_data_bound and is_beside and self.wait_cause != 'fetching'

    @cached_property
    def judged_saves(self) -> tuple[SaveJudgement, ...]:
        """Judgement of each checkpoint save of the run, in recorded order."""
        return judge_saves(
            self.save_records, self.after_saves, self.meta.host, self.meta.loader
        )

    @property
    def bound_share(self) -> float | None:
        """Share (0 to 1) of an iteration's time in data wait, if that is a problem.

        ``None`` where it is none, or too few iterations were recorded.
        """
        share = self.figures.data_wait_share
        if share is None or not self.figures.is_enough:
            return None
        return share if share >= thresholds.DATA_WAIT_PROBLEM else None

    @property
    def is_data_bound(self) -> bool:
        """True if waiting for data is a problem in steady iterations."""
        return self.bound_share is not None

    @property
    def wait_cause(self) -> str | None:
        """Cause of a data-bound run's waits; ``None`` if the run is not data-bound.

        ``starved``: the loader cannot keep up. ``stalls``: starving workers make the
        loop wait at least once in W iterations, so a mean above the 95th percentile of
        a usual interval is made of rare stalls. ``fetching``: the wait is the training
        thread's own CPU. No setting of the loader cures the last two.
        """
        figures, share = self.figures, self.bound_share
        parts = figures.per_iteration
        if share is None or parts is None:
            return None
        if self.meta.loader.num_workers:
            p95_s = figures.data_wait_p95_s
            if p95_s is not None and p95_s < parts.data_wait_s:
                return 'stalls'
            # where the CPU of the wait is unknown, none of it is
            waited = 1.0 - (figures.data_wait_cpu_share or 0.0)
            if waited * share < thresholds.DATA_WAIT_PROBLEM:
                return 'fetching'
        return 'starved'

    @property
    def is_starved(self) -> bool:
        """True if the training loop waits because the loader delivers too slowly."""
        return self.wait_cause == 'starved'

    @property
    def is_stalled(self) -> bool:
        """True if waits for data are rare stalls, and loading times were not measured.

        Where loading was measured inside the workers, the workload tells more.
        """
        loader = self.figures.loader
        is_measured = loader is not None and loader.batch_time_s is not None
        return self.wait_cause == 'stalls' and not is_measured

    @property
    def is_start_long(self) -> bool:
        """True if the time until the first iteration's end is worth reporting."""
        start, whole_s = self.evidence.start, self.whole_s
        if start is None or start.wall_s < thresholds.START_LEAST_S:
            return False
        return start.wall_s >= thresholds.START_NOTICE * whole_s

    @property
    def whole_s(self) -> float:
        """Seconds from process start (if unknown, Runner start) to the run's end."""
        start = self.evidence.start
        before_s = 0.0
        if start is not None:
            names = ('before_hook', 'imports', 'config', 'model')
            before_s = sum(start.parts_s.get(name, 0.0) for name in names)
        return self.figures.duration_s + before_s

    @property
    def headspace_pct(self) -> float | None:
        """Upper bound, in per cent, of the speed-up if data cost no time at all.

        Over the whole run, starts of the loader included, and what workers hold the
        step up by being on its cores.
        """
        ledger_s, whole_s = self.figures.ledger_s, self.figures.duration_s
        waits_s = ledger_s.get('data_wait', 0.0) + self.figures.startup_s
        if self.workload is not None:
            waits_s += self.workload.iterations * self.workload.held_up_s
        if not self.figures.is_enough or not 0.0 <= waits_s < whole_s:
            return None
        return 100.0 * waits_s / (whole_s - waits_s)

    @property
    def blocked_share(self) -> float | None:
        """Share (0 to 1) of a batch's loading time that waits for storage or locks."""
        workload, loader = self.workload, self.figures.loader
        if workload is None or not workload.is_batch_time_known:
            return None
        whole_s, used_s = workload.batch_time.mean_s, workload.batch_cpu.mean_s
        if (
            loader
            and loader.batch_time_s is not None
            and loader.batch_cpu_s is not None
        ):
            # waiting for a core is no waiting for storage; unknown, it is taken for it
            delay_s = self._loading_delay_s or 0.0
            used_s = loader.batch_cpu_s
            whole_s = max(loader.batch_time_s - delay_s, used_s)
        return max(1.0 - used_s / whole_s, 0.0) if whole_s > 0.0 else 0.0

    @property
    def _loading_delay_s(self) -> float | None:
        """Seconds per batch that the loading thread waited for a core."""
        figures = self.figures
        if self.meta.loader.num_workers:
            return figures.worker_run_delay_s
        share, delay_s = figures.data_wait_share, figures.main_run_delay_s
        # of the training thread's, which loads and steps in turns
        return None if share is None or delay_s is None else share * delay_s

    @property
    def waiting_share(self) -> float:
        """Share (0 to 1) of loading time spent waiting for storage; 0 if below 0.5.

        Workers that wait so much may outnumber the cores.
        """
        share = self.blocked_share
        return share if share and share >= thresholds.BLOCKED_PROBLEM else 0.0

    @property
    def confined_cpus(self) -> int | None:
        """Number of CPUs to which workers are confined; ``None`` when they are not."""
        confined = self.figures.loader.affinity_cpus if self.figures.loader else None
        own = self.meta.host.affinity_cpus
        return confined if confined and own and confined < own else None

    @property
    def unbinding(self) -> Text | None:
        """Sentence on how to lift a process's CPU binding; ``None`` if unknown."""
        host = self.meta.host
        if host.unbound_cpus is None or host.bound_by is None:
            return None
        return phrase(
            'Unset {bound_by} where the training is started.', bound_by=host.bound_by
        )

    @property
    def cpu_floor_s(self) -> float | None:
        """Lower bound on an iteration's seconds: its CPU seconds divided by free cores.

        Never more than the run itself took.
        """
        if self.workload is None:
            return None
        floor_s = self.workload.cpu_s / self.free_cores
        return min(floor_s, self.figures.iter_s or floor_s)

    @property
    def free_cores(self) -> float:
        """Number of usable cores minus those that other programs use."""
        workload = self.workload
        assert workload is not None
        free = workload.free_cores
        if self.figures.iter_s and workload.cpu_s / free > self.figures.iter_s:
            # the run was faster than that: it had what they did not use
            left = workload.host_cores - self.external_share_cores
            return min(workload.usable_cores, max(left, free))
        return free

    @property
    def used_cores(self) -> float | None:
        """Mean number of cores that the training process and its workers used."""
        figures = self.figures
        own, workers_s = figures.process_cpu_cores, figures.worker_cpu_s
        if own is None or (self.meta.loader.num_workers and workers_s is None):
            return None
        if workers_s is None:
            return own
        iter_s = figures.iter_s
        return own + workers_s / iter_s if iter_s and math.isfinite(iter_s) else None

    @property
    def is_cpu_the_wall(self) -> bool:
        """True if CPU cores, not train steps, would limit speed with ideal loading."""
        floor_s, workload = self.cpu_floor_s, self.workload
        if floor_s is None or workload is None or not self.figures.iter_s:
            return False
        if not workload.num_workers:
            # one process alone does not hold its own against others; more would
            floor_s = workload.cpu_s / workload.usable_cores
        return floor_s > max(workload.ready_s, 0.9 * self.figures.iter_s)

    @property
    def external_share_cores(self) -> float:
        """Number of cores that other programs took from this rank; 0 if unknown."""
        # nothing is taken off the host for what nobody saw
        return (self.figures.external_cpu_cores or 0.0) / self.meta.host.ranks

    @property
    def is_busy_host(self) -> bool:
        """True if other programs used enough CPU to change the measurements."""
        external, logical = self.figures.external_cpu_cores, self.meta.host.logical_cpus
        return bool(
            external and logical and external >= thresholds.EXTERNAL_LOAD * logical
        )

    def saves_held_by(self, cause: str | None) -> list[SaveJudgement]:
        """Lists the slow saves with a given cause; ``None``: without a proven cause."""
        judged = self.judged_saves
        return [save for save in judged if save.is_slow and save.cause == cause]
