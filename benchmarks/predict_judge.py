"""Predicts every setting from every single training, and compares."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import BUSY_LIMIT_PCT
from benchmarks.predict_pipelines import Pipeline
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.workload import fit_workload
from mmgpu_hooks.model.pace import bound_iter_s
from mmgpu_hooks.model.prediction import predict_grid
from mmgpu_hooks.schema import Cost, LoaderWorkload


@dataclass(frozen=True)
class Trial:
    """One training."""

    pipeline: Pipeline
    num_workers: int
    prefetch_factor: int
    iter_s: float
    """By the model's own stamps."""
    summary: Run
    strangers_pct: float
    """Share of the machine that others used meanwhile."""

    @property
    def setting(self) -> tuple[int, int]:
        """``num_workers`` and ``prefetch_factor``."""
        return self.num_workers, self.prefetch_factor


@dataclass(frozen=True)
class Case:
    """One setting, predicted from one other training."""

    pipeline: Pipeline
    run: tuple[int, int]
    setting: tuple[int, int]
    measured_s: float
    predicted_s: float
    low_s: float
    high_s: float
    bound_s: float
    """The closed bound's, from the same training."""
    limit: str

    @property
    def error(self) -> float:
        """Relative."""
        return self.predicted_s / self.measured_s - 1.0

    @property
    def bound_error(self) -> float:
        """Relative."""
        return self.bound_s / self.measured_s - 1.0

    @property
    def is_covered(self) -> bool:
        """Whether the interval holds the truth."""
        return self.low_s <= self.measured_s <= self.high_s


def read_trials(path: Path) -> tuple[list[Trial], int]:
    """Read what ``benchmarks.predict_measure`` wrote.

    Returns:
        The trainings, and how many are left out because strangers used the machine.
    """
    trials, busy = [], 0
    with tempfile.TemporaryDirectory() as folder:
        evidence_path = Path(folder) / 'gpu_efficiency.jsonl'
        for text in path.read_text().splitlines():
            line = json.loads(text)
            if line['strangers_pct'] > BUSY_LIMIT_PCT:
                busy += 1
                continue
            evidence_path.write_text('\n'.join(line['evidence']) + '\n')
            trials.append(
                Trial(
                    Pipeline(**line['pipeline']),
                    line['num_workers'],
                    line['prefetch_factor'],
                    line['iter_s'],
                    Run.read(evidence_path),
                    line['strangers_pct'],
                )
            )
    return trials, busy


def judge_trials(trials: Sequence[Trial]) -> tuple[list[Case], list[str]]:
    """All cases, and a sentence for each training that nothing was predicted from."""
    cases: list[Case] = []
    refused = []
    by_pipeline: dict[str, list[Trial]] = {}
    for trial in trials:
        by_pipeline.setdefault(trial.pipeline.name, []).append(trial)
    for same in by_pipeline.values():
        for run in same:
            workload = fit_workload(run.summary)
            if not isinstance(workload, LoaderWorkload):
                refused.append(f'{run.pipeline.name} {run.setting}: {workload.reason}')
                continue
            cases += predict_cases(run, workload, [o for o in same if o is not run])
    return cases, refused


def predict_cases(
    run: Trial, workload: LoaderWorkload, others: Sequence[Trial]
) -> list[Case]:
    """Predict each of the others.

    Args:
        run: What is predicted from.
        workload: Of it; others may have had a say in it.
        others: Of the same pipeline.
    """
    predictions = predict_grid(workload, [other.setting for other in others])
    return [
        Case(
            pipeline=run.pipeline,
            run=run.setting,
            setting=other.setting,
            measured_s=other.iter_s,
            predicted_s=one.iter_time_s,
            low_s=one.iter_time_low_s,
            high_s=one.iter_time_high_s,
            bound_s=bound_iter_s(workload, other.num_workers),
            limit=one.limit,
        )
        for other, one in zip(others, predictions)
    ]


def time_grid() -> float:
    """CPU seconds that a grid of 40 settings takes, of a workload with queues."""
    workload = LoaderWorkload(
        num_workers=2,
        prefetch_factor=2,
        persistent_workers=True,
        batch_size=4,
        iterations=200,
        iter_time=Cost(0.02),
        occupancy=Cost(0.03, 0.03, 0.001, 200),
        batch_cpu=Cost(0.02, 0.02, 0.001, 200),
        step=Cost(0.015, 0.003, 0.001, 200),
        step_cpu_s=0.01,
        fetch_s=0.001,
        fetch_busy_s=0.002,
        usable_cores=8.0,
        host_cores=8.0,
        stranger_tasks=0.5,
    )
    factors = (1, 2, 4, 8)
    settings = [(workers, factor) for workers in range(10) for factor in factors]
    began = time.process_time()
    predict_grid(workload, settings)
    return time.process_time() - began


def quantile(values: Iterable[float], share: float) -> float:
    """Linearly interpolated between order statistics."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def median(values: Iterable[float]) -> float:
    """Median."""
    return statistics.median(values)
