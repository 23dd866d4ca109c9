"""Brings checkpoint saves about beside several numbers of workers, for real."""

from __future__ import annotations

import contextlib
import random
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

from mmgpu_hooks.experiment.trial import DEFAULT_TIME_LIMIT_S, read_trial, run_trial
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.save_experiment import (
    Won,
    fold_save_row,
    judge_save_bench,
)
from mmgpu_hooks.measure.clock import monotonic_s
from mmgpu_hooks.schema import (
    SaveBench,
    SaveBenchRow,
    SavePlan,
    SaveSetting,
    TrialResult,
    TrialSpec,
)

SETTLING = 8
"""Least iterations between saves in which the workers' queue is what it usually is; as
many as there are workers where those are more, since their batches come in bursts."""

_ROOM = 1.25
"""Room that is asked for, over the tensors of one checkpoint: names, histories and the
evidence come on top, and the disk is not to be filled to the brim."""

_PREFIX = 'save-bench-'


class SaveExperimentError(Exception):
    """The experiment cannot be made; one sentence for the user."""


@dataclass(frozen=True)
class SaveExperiment:
    """What is to be found out, and how."""

    config: str
    """Absolute."""
    folder: str
    """Where checkpoints go while it lasts; it must exist."""
    plans: Sequence[SavePlan]
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of every training, by dotted key."""
    time_limit_s: float = DEFAULT_TIME_LIMIT_S
    """Of each training, its start included."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """Environment variables to add."""


def plan_saves(
    num_workers: Sequence[int],
    *,
    saves: int,
    prefetch_factor: int,
    interval: int | None = None,
    worker_nice: int | None = None,
) -> tuple[SavePlan, ...]:
    """What each setting is to be trained for; each is there once.

    What workers make ahead during a save lasts for ``prefetch_factor x num_workers``
    iterations. A save in that time would meet workers that rest, so the next one comes
    a round of all workers later, :data:`SETTLING` iterations at least; and after the
    last one as many are trained as that takes, so that it is known what was won back.

    Args:
        num_workers: Numbers of workers.
        saves: To be measured of each.
        prefetch_factor: Of the loader.
        interval: Iterations between saves; ``None`` takes those above.
        worker_nice: Nice value that every setting with workers is trained with as well.
    """
    plain = [SaveSetting(workers) for workers in sorted(set(num_workers))]
    polite = [
        SaveSetting(setting.num_workers, worker_nice)
        for setting in plain
        if setting.num_workers and worker_nice is not None
    ]
    plans = []
    for setting in (*plain, *polite):
        ahead = prefetch_factor * setting.num_workers
        between = interval or ahead + max(SETTLING, setting.num_workers)
        iterations = (saves + 1) * between + min(ahead, between - 1)
        plans.append(SavePlan(setting, saves, between, iterations))
    return tuple(plans)


def run_save_experiment(
    experiment: SaveExperiment,
    *,
    on_progress: Callable[[str, float], None],
    shuffle: Callable[[list[SavePlan]], None] = random.shuffle,
) -> SaveBench:
    """Train each setting for a while, one after the other, and judge their saves.

    A training that fails, runs out of memory or time is a row without figures, or with
    those of the saves until then. Ctrl-C ends it with what there is. Nothing is left
    running, and no checkpoint is left.

    Args:
        experiment: What to train.
        on_progress: Called with what goes on and the share that is done, 0 to 1.
        shuffle: Puts the settings into the order in which they are trained, by default
            a random one: a drift of the machine is then not taken for their effect.

    Raises:
        OSError: If a folder or a process cannot be made.
    """
    begin_s = monotonic_s()
    plans = list(experiment.plans)
    shuffle(plans)
    measured: list[tuple[SaveBenchRow, Won]] = []
    whole = sum(plan.iterations for plan in plans)
    done = 0
    is_interrupted = False
    try:
        for number, plan in enumerate(plans, start=1):
            words = f'{number} of {len(plans)}: {plan.setting.name}'
            result, run = _train(
                experiment, plan, _Told(on_progress, words, done, whole)
            )
            measured.append(fold_save_row(plan, result, run))
            done += plan.iterations
    except KeyboardInterrupt:
        is_interrupted = True
    return judge_save_bench(
        measured,
        order=[plan.setting for plan in plans],
        seconds=monotonic_s() - begin_s,
        is_interrupted=is_interrupted,
    )


@contextlib.contextmanager
def temporary_folder(parent: Path) -> Iterator[Path]:
    """A new folder in ``parent``, gone afterwards with whatever had to be made for it.

    Raises:
        OSError: If it cannot be made.
    """
    made = [folder for folder in (parent, *parent.parents) if not folder.exists()]
    parent.mkdir(parents=True, exist_ok=True)
    try:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        for empty in made:
            with contextlib.suppress(OSError):
                empty.rmdir()


def check_room(folder: Path, checkpoint_bytes: int) -> None:
    """Make sure that one checkpoint fits where checkpoints are to go.

    Args:
        folder: It, or where it will be made.
        checkpoint_bytes: Of the tensors in one.

    Raises:
        SaveExperimentError: If there is not enough room.
    """
    there = next(one for one in (folder, *folder.parents) if one.exists())
    free, needed = shutil.disk_usage(there).free, round(_ROOM * checkpoint_bytes)
    if free < needed:
        raise SaveExperimentError(
            f'expected room for a checkpoint of {checkpoint_bytes / 1e6:.0f} MB and a '
            f'quarter more in {there}, found {free / 1e6:.0f} MB free; free some, or '
            'name another folder with --work-dir.'
        )


class _Told:
    """Passes on how far one of several trainings is.

    Args:
        on_progress: Whom to tell.
        words: What is trained.
        before: Iterations of the trainings before it.
        whole: Iterations of all of them.
    """

    def __init__(
        self,
        on_progress: Callable[[str, float], None],
        words: str,
        before: int,
        whole: int,
    ) -> None:
        self._on_progress = on_progress
        self._words, self._before, self._whole = words, before, whole
        self(0)

    def __call__(self, iterations: int) -> None:
        said = f', iteration {iterations}' if iterations else ', starting'
        share = (self._before + iterations) / max(self._whole, 1)
        self._on_progress(self._words + said, min(share, 1.0))


def _train(
    experiment: SaveExperiment, plan: SavePlan, told: Callable[[int], None]
) -> tuple[TrialResult, Run | None]:
    setting = plan.setting
    folder = Path(experiment.folder) / f'{setting.num_workers}-{setting.worker_nice}'
    spec = TrialSpec(
        config=experiment.config,
        folder=str(folder),
        settings={
            **experiment.settings,
            'train_dataloader.num_workers': setting.num_workers,
        },
        iterations=plan.iterations,
        interval=plan.interval,
        save_interval=plan.interval,
        # one that the config has must not make every row polite
        hook={'worker_nice': setting.worker_nice},
    )
    try:
        result = run_trial(
            spec,
            time_limit_s=experiment.time_limit_s,
            on_progress=told,
            environ=experiment.environ,
        )
        return result, read_trial(result)
    finally:
        # the next one needs the room
        shutil.rmtree(folder, ignore_errors=True)
