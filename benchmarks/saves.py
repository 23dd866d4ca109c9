"""Why was that save slow? Planted causes against those that are named.

    python -m benchmarks.saves [--only SCENE ...]

On MMEngine's own Runner, in a folder in memory, each cause holds at least ten saves:
busy workers, strangers on the cores, a backend that writes elsewhere, storage that
blocks, long histories in the message hub. Every one must be named, and no healthy save
of 200. Then the counterfactual, polite workers, and a real MMDetection training.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable

import psutil
import torch

from benchmarks.harness import Benchmark, Figure
from benchmarks.saves_judge import (
    Judged,
    closing_error,
    judge_run,
    name_cause,
    render_causes,
)
from benchmarks.saves_mmdet import train_detector
from benchmarks.saves_plant import Trained, hogs, train_planted

SAVES = 12
"""Of each planted cause."""
HEALTHY = ((5.0, 0, 0.0), (50.0, 2, 0.001), (100.0, 1, 0.0), (200.0, 0, 0.002))
"""Megabytes, workers and CPU per item of healthy trainings, 50 saves each."""
BUSY_WORKERS, BUSY_CPU_S, BUSY_INTERVAL = 16, 0.25, 12
"""Workers that never get ahead of the loop, so that they are busy in every save."""
PUT_S = 1.0
NICE = 10


class Scenes:
    """Runs the scenes and keeps what they gave.

    Args:
        benchmark: Takes the figures.
        folder: Of all trainings.
    """

    def __init__(self, benchmark: Benchmark, folder: Path) -> None:
        self._add = benchmark.add
        self._folder = folder
        self._judged: dict[str, Judged] = {}
        self._busy: Trained | None = None

    def _train(self, **arguments: Any) -> Trained:
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        try:
            return train_planted(folder, **arguments)
        finally:
            shutil.rmtree(folder)

    def _train_busy(self, **more: Any) -> Trained:
        return self._train(
            saves=SAVES,
            interval=BUSY_INTERVAL,
            num_workers=BUSY_WORKERS,
            cpu_s=BUSY_CPU_S,
            **more,
        )

    def _plant(self, cause: str, trained: Trained) -> None:
        """One row of the confusion matrix."""
        judged = judge_run(trained.evidence)
        self._judged[cause] = judged
        named = Counter(name_cause(judgement) for _, judgement in judged)
        self._add(
            Figure(
                f'planted: {cause}',
                named[cause],
                f'of {len(judged)} named {cause}',
                f'= {len(judged)}',
                named[cause] == len(judged) >= 10,
                render_causes(named) + f'; {trained.warnings} warning(s) in the run',
            )
        )

    def workers(self) -> None:
        self._busy = self._train_busy()
        self._plant('workers', self._busy)

    def strangers(self) -> None:
        with hogs(2 * (os.cpu_count() or 1)):
            trained = self._train(saves=SAVES, megabytes=300.0)
        self._plant('strangers', trained)

    def remote(self) -> None:
        far = {'backend': 'far', 'put_s': PUT_S}
        self._plant('remote', self._train(saves=SAVES, megabytes=20.0, backend=far))

    def storage(self) -> None:
        slow = {'backend': 'slow', 'put_s': PUT_S}
        trained = self._train(saves=SAVES, megabytes=20.0, backend=slow)
        self._plant('storage', trained)
        blocked = [
            (save.phases['write'].blocked_s or math.inf) / PUT_S
            for save, _ in self._judged['storage']
        ]
        error_pct = 100 * abs(statistics.median(blocked) - 1)
        self._add(
            Figure(
                'blocked in the write against the planted wait',
                error_pct,
                '% off',
                '<= 3',
                error_pct <= 3,
                f'median of {len(blocked)}',
            )
        )

    def size(self) -> None:
        trained = self._train(saves=SAVES, megabytes=20.0, hub_megabytes=600.0)
        self._plant('size', trained)

    def memory(self) -> None:
        # without swap the kernel has nowhere to put what does not fit
        if not psutil.swap_memory().total:
            note = 'skipped: this machine has no swap, and memory short of it is a kill'
        else:
            note = 'skipped: pressure on memory would stall the whole machine'
        self._add(Figure('planted: memory', None, note=note))

    def healthy(self) -> None:
        named: Counter[str] = Counter()
        warnings = saves = blamed = 0
        for megabytes, num_workers, cpu_s in HEALTHY:
            trained = self._train(
                saves=50, megabytes=megabytes, num_workers=num_workers, cpu_s=cpu_s
            )
            judged = judge_run(trained.evidence)
            self._judged[f'healthy {megabytes:g} MB'] = judged
            named.update(name_cause(judgement) for _, judgement in judged)
            warnings += trained.warnings
            blamed += sum(one.cause is not None for _, one in judged)
            saves += len(judged)
        self._add(
            Figure(
                'healthy saves that were warned of',
                max(warnings, blamed),
                f'of {saves}',
                '= 0',
                saves >= 200 and not warnings and not blamed,
                render_causes(named),
            )
        )

    def counterfactual(self) -> None:
        """The same saves, as far apart, beside workers that have nothing to do."""
        busy = self._busy or self._train_busy()
        idle = self._train(
            saves=SAVES,
            interval=2,
            num_workers=BUSY_WORKERS,
            pause_s=busy.gap_s / 2,
        )
        alone_s = statistics.median(s.wall_s for s in idle.evidence.save_records)
        judged = judge_run(busy.evidence)
        errors = [
            abs((judgement.uncontended_s or math.inf) / alone_s - 1)
            for _, judgement in judged
        ]
        slow_s = statistics.median(save.wall_s for save, _ in judged)
        error_pct = 100 * statistics.median(errors)
        self._add(
            Figure(
                'uncontended save, predicted against measured',
                error_pct,
                '% off',
                '<= 15',
                error_pct <= 15,
                f'median of {len(errors)}; {alone_s:.3f} s beside idle workers, '
                f'{slow_s:.3f} s beside {BUSY_WORKERS} busy ones',
            )
        )

    def polite(self) -> None:
        """Busy workers that give way."""
        busy = self._busy or self._train_busy()
        polite = self._train_busy(worker_nice=NICE)
        walls = [
            statistics.median(save.wall_s for save in trained.evidence.save_records)
            for trained in (busy, polite)
        ]
        self._add(
            Figure(
                f'save beside busy workers, over that with worker_nice={NICE}',
                walls[0] / walls[1],
                'times',
                '>= 2',
                walls[0] / walls[1] >= 2,
                f'{walls[0]:.3f} s and {walls[1]:.3f} s, medians of {SAVES}',
            )
        )
        differ = sum(a != b for a, b in zip(busy.losses, polite.losses))
        differ += abs(len(busy.losses) - len(polite.losses))
        self._add(
            Figure(
                'losses that polite workers changed',
                differ,
                f'of {len(busy.losses)}',
                '= 0',
                differ == 0,
            )
        )

    def mmdet(self) -> None:
        """MMDetection on two cores, saving every few iterations."""
        for num_workers, is_slow in ((16, True), (1, False)):
            run = train_detector(self._folder, num_workers)
            walls = [save.wall_s for save in run.evidence.save_records]
            named = Counter(name_cause(one) for _, one in judge_run(run.evidence))
            self._add(
                Figure(
                    f'MMDetection, num_workers={num_workers}: warnings',
                    len(run.warnings),
                    f'in {len(walls)} saves',
                    '>= 1' if is_slow else '= 0',
                    bool(run.warnings) == is_slow,
                    render_causes(named)
                    + f'; median save {statistics.median(walls):.2f} s',
                )
            )

    def close(self) -> None:
        """What concerns the saves of all scenes."""
        saves = [save for judged in self._judged.values() for save, _ in judged]
        if not saves:
            return
        errors = [closing_error(save) for save in saves]
        error_pct = 100 * statistics.median(errors)
        self._add(
            Figure(
                'cpu + run delay + blocked against the wall clock',
                error_pct,
                '% off',
                '<= 3',
                error_pct <= 3,
                f'median of {len(saves)} saves; {100 * max(errors):.2f} % at most',
            )
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the scenes and print the table."""
    names = [name for name, value in vars(Scenes).items() if _is_scene(name, value)]
    parser = argparse.ArgumentParser()
    parser.add_argument(
        '--only', nargs='+', choices=names, default=names, metavar='SCENE'
    )
    benchmark = Benchmark('saves', __doc__ or '', argv, parser=parser)
    torch.set_num_threads(1)
    shm = Path('/dev/shm')
    with tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None) as folder:
        scenes = Scenes(benchmark, Path(folder))
        for name in benchmark.options.only:
            getattr(scenes, name)()
        scenes.close()
    return benchmark.finish()


def _is_scene(name: str, value: Callable[..., Any]) -> bool:
    return callable(value) and not name.startswith('_') and name != 'close'


if __name__ == '__main__':
    sys.exit(main())
