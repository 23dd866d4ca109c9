"""What settings lost of a job's time, and what worker processes they took."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.recommend import choice
from mmgpu_hooks.recommend.choice import job_s
from mmgpu_hooks.recommend.job_plan import plan_job
from mmgpu_hooks.recommend.policy import recommend_settings
from mmgpu_hooks.recommend.worker_cap import DEFAULT_PREFETCH
from mmgpu_hooks.schema import Recommendation
from mmgpu_hooks.schema.reader import read_evidence

DEFAULT = 2
"""Workers; MMDetection's own."""
WORKERS = (0, 1, 2, 3, 4, 5, 6, 8)

Setting = tuple[int, bool]
"""``num_workers`` and ``persistent_workers``."""


@dataclass(frozen=True)
class Trial:
    """One training of a whole job."""

    job: str
    repeat: int
    setting: Setting
    job_s: float
    strangers_pct: float
    workers_bytes: int
    """Memory of all workers."""
    recommendation: Recommendation
    """Made of this training alone."""
    predicted_s: Mapping[Setting, float] = field(default_factory=dict)
    """What the job was predicted to take with each setting, from this training alone;
    of those with the default number of workers."""


@dataclass(frozen=True)
class Outcome:
    """What one way of choosing lost of one job."""

    job: str
    setting: Setting
    lost: float
    """Over the best of the whole grid; 0 where it is within what the best one's own
    trainings differ by."""
    workers_bytes: int


def read_trials(path: Path) -> list[Trial]:
    """Read what ``benchmarks.regret_measure`` wrote."""
    trials = []
    with tempfile.TemporaryDirectory() as folder:
        evidence_path = Path(folder) / 'gpu_efficiency.jsonl'
        for text in path.read_text().splitlines():
            line = json.loads(text)
            evidence_path.write_text('\n'.join(line['evidence']) + '\n')
            evidence = read_evidence(evidence_path)
            summary = Run(evidence)
            run = summary
            pss = summary.loader.pss_bytes if summary.loader else None
            trials.append(
                Trial(
                    line['job'],
                    line['repeat'],
                    (line['num_workers'], line['persistent_workers']),
                    line['job_s'],
                    line['strangers_pct'],
                    pss or 0,
                    recommend_settings(run),
                    _predict(run) if line['num_workers'] == DEFAULT else {},
                )
            )
    return trials


def _predict(run: Run) -> dict[Setting, float]:
    workload, plan = run.workload, plan_job(run)
    if workload is None:
        return {}
    return {
        (workers, lasting): job_s(
            workload, choice.Setting(workers, DEFAULT_PREFETCH, lasting), plan
        )
        for workers in WORKERS
        for lasting in ((True, False) if workers else (True,))
    }


def list_errors(trials: Sequence[Trial]) -> dict[str, list[tuple[int, float]]]:
    """By job: to how many workers, and how far the predicted job is off, a share."""
    errors: dict[str, list[tuple[int, float]]] = {}
    for same in _by_job(trials):
        lasting = _is_persistent(same)
        for one in same:
            for other in same:
                workers, persistent = other.setting
                is_it = workers == DEFAULT or (persistent != lasting and workers)
                predicted_s = one.predicted_s.get((workers, persistent or not workers))
                if is_it or predicted_s is None or other.repeat != one.repeat:
                    continue
                off = predicted_s / other.job_s - 1.0
                errors.setdefault(one.job, []).append((workers, off))
    return errors


def keep_whole(trials: Sequence[Trial]) -> list[Trial]:
    """Repeats in which every setting of the job's grid was trained."""
    groups: dict[tuple[str, int], list[Trial]] = {}
    for trial in trials:
        groups.setdefault((trial.job, trial.repeat), []).append(trial)
    most: dict[str, int] = {}
    for (job, _), some in groups.items():
        most[job] = max(most.get(job, 0), len(some))
    return [
        trial
        for (job, _), some in groups.items()
        if len(some) == most[job]
        for trial in some
    ]


def judge_recommended(trials: Sequence[Trial]) -> list[Outcome]:
    """What is recommended from each training at the default of 2 workers."""
    outcomes = []
    for same in _by_job(trials):
        default = (DEFAULT, _is_persistent(same))
        outcomes += [
            _judge(same, _chosen(trial.recommendation, default, same))
            for trial in same
            if trial.setting == default
        ]
    return outcomes


def judge_rule(trials: Sequence[Trial], workers: int) -> list[Outcome]:
    """What the same number of workers loses everywhere."""
    return [
        _judge(same, (workers, _is_persistent(same)))
        for same in _by_job(trials)
        if any(trial.setting[0] == workers for trial in same)
    ]


def _by_job(trials: Sequence[Trial]) -> list[list[Trial]]:
    by_job: dict[str, list[Trial]] = {}
    for trial in trials:
        by_job.setdefault(trial.job, []).append(trial)
    return list(by_job.values())


def _is_persistent(same: Sequence[Trial]) -> bool:
    """As the job is configured: a grid has both only where workers end."""
    return all(trial.setting[1] for trial in same)


def _chosen(
    recommendation: Recommendation, default: Setting, same: Sequence[Trial]
) -> Setting:
    """The measured setting that comes nearest; prefetching is not in the grid."""
    new = {change.key.split('.')[-1]: change.new for change in recommendation.changes}
    workers = new.get('num_workers', default[0])
    persistent = new.get('persistent_workers', default[1])
    settings = {trial.setting for trial in same}
    return min(
        settings,
        key=lambda one: (abs(one[0] - workers), one[1] != persistent, one[0]),
    )


def _judge(same: Sequence[Trial], setting: Setting) -> Outcome:
    """Against the fastest of all settings; of each, the faster training counts."""
    times: dict[Setting, list[float]] = {}
    for trial in same:
        times.setdefault(trial.setting, []).append(trial.job_s)
    best = min(times.values(), key=min)
    took_s = min(times[setting])
    is_equal = took_s <= max(best)
    sizes = [trial.workers_bytes for trial in same if trial.setting == setting]
    lost = 0.0 if is_equal else took_s / min(best) - 1.0
    return Outcome(same[0].job, setting, lost, max(sizes))
