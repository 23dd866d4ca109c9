"""Is every second of training booked where it was spent? Planted against measured.

    python -m benchmarks.ledger

Each part must be within 2 % or 1 ms of the stamps that lie in the planted objects,
the parts must add up to 99 % of the wall clock, and ``other`` must stay under 1 %.
MMEngine's own ``data_time`` is printed beside the wait for data.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import Benchmark, Figure
from benchmarks.planted import (
    HOOK_S,
    RARE_HOOKS,
    TAPE,
    StampedLoader,
    build_planted,
    plant_rare,
)
from mmgpu_hooks.schema import RunEvidence
from mmgpu_hooks.schema.reader import read_evidence

CLOSES_WITHIN, OTHER_AT_MOST = 0.01, 0.01
REL, ABS_S = 0.02, 0.001

SCENES: dict[str, dict[str, Any]] = {
    'epoch': {'loop': 'epoch'},
    'epoch, 2 workers': {'loop': 'epoch', 'num_workers': 2},
    'epoch, 2 persistent workers': {
        'loop': 'epoch',
        'num_workers': 2,
        'persistent_workers': True,
    },
    'iter': {'loop': 'iter'},
    'iter, 2 workers': {'loop': 'iter', 'num_workers': 2},
    'custom loop without run_iter': {'loop': 'custom'},
    'FlexibleRunner': {'loop': 'epoch', 'flexible': True},
    'epoch, resumed': {'loop': 'epoch', 'epochs': 4, 'resume': 2},
    'iter, resumed': {'loop': 'iter', 'iterations': 60, 'epochs': 3, 'resume': 20},
    'epoch, hooks that take long now and then': {
        'loop': 'epoch',
        'iterations': 320,
        'save_interval': 160,
        'is_rare': True,
    },
}


@dataclass(frozen=True)
class Part:
    """One part of one scene, per occurrence."""

    name: str
    occurrences: int
    planted_s: float
    measured_s: float

    @property
    def limit_s(self) -> float:
        """How far off it may be."""
        return max(REL * self.planted_s, ABS_S)


@dataclass(frozen=True)
class Scene:
    """What one training was, by the stamps and by the ledger."""

    parts: Sequence[Part]
    closing: float
    """Parts of the ledger over the wall clock of training."""
    other: float
    """Share of ``other``."""
    data_time_s: float
    """Mean of MMEngine's own figure."""


def run_scene(arguments: dict[str, Any]) -> Scene:
    """Train once and compare."""
    arguments = dict(arguments)
    resume, is_rare = arguments.pop('resume', None), arguments.pop('is_rare', False)
    with tempfile.TemporaryDirectory() as folder:
        work_dir = Path(folder)
        if resume is not None:
            arguments['resume_from'] = _train_first(
                work_dir / 'first', resume, **arguments
            )
        runner = build_planted(work_dir / 'run', **arguments)
        if is_rare:
            plant_rare(runner)
        train_loop = runner.build_train_loop
        begin = time.perf_counter()
        walls: list[float] = []

        def build_stamped_loop(*args: Any, **kwargs: Any) -> Any:
            loop = train_loop(*args, **kwargs)
            run = loop.run

            def stamped_run() -> Any:
                begin = time.perf_counter()
                try:
                    return run()
                finally:
                    walls.append(time.perf_counter() - begin)

            loop.run = stamped_run
            return loop

        runner.build_train_loop = build_stamped_loop
        runner.train()
        assert time.perf_counter() - begin >= walls[0]
        (path,) = (work_dir / 'run').rglob('gpu_efficiency.jsonl')
        return _compare(runner, read_evidence(path), walls[0])


def _train_first(work_dir: Path, until: int, **arguments: Any) -> str:
    if arguments['loop'] == 'iter':
        arguments.update(iterations=until, epochs=1)
        save = until
    else:
        per_epoch = arguments.get('iterations', 40) // arguments['epochs']
        arguments.update(iterations=per_epoch * until, epochs=until)
        save = per_epoch * until
    build_planted(work_dir, save_interval=save, **arguments).train()
    return str(work_dir / f'iter_{save}.pth')


def _compare(runner: Any, evidence: RunEvidence, wall_s: float) -> Scene:
    end = evidence.end
    assert end is not None
    ledger = end.ledger_s
    loader: StampedLoader = runner.train_dataloader
    stamps = TAPE.seconds
    skipped = evidence.run.start_iteration if evidence.run.loop == 'iter' else 0
    waits = len(stamps['step'])
    planted = _plan_loading(loader, evidence.run.loop == 'iter', skipped)
    saves = stamps['checkpoint_save']
    parts = [
        *(
            Part(
                name,
                max(count, 1),
                seconds / max(count, 1),
                ledger[name] / max(count, 1),
            )
            for name, (count, seconds) in planted.items()
        ),
        _part('step', stamps['step'], ledger['step']),
        _part('checkpoint_save', saves, ledger['checkpoint_save']),
        _part('validation', stamps['validation'], ledger['validation']),
        Part('hooks', waits, _hooks_s(stamps) / waits, ledger['hooks'] / waits),
        *(
            _part(f'hooks: {name}', stamps[name], end.hooks_s[name])
            for name in (*HOOK_S, *(hook.__name__ for hook in RARE_HOOKS))
            if name in stamps
        ),
    ]
    history = runner.message_hub.get_scalar('train/data_time').data[0]
    return Scene(
        parts=parts,
        closing=math.fsum(ledger.values()) / wall_s,
        other=ledger['other'] / wall_s,
        data_time_s=float(statistics.fmean(history[-waits:])),
    )


def _plan_loading(
    loader: StampedLoader, endless: bool, skipped: int
) -> dict[str, tuple[int, float]]:
    """How often the parts around the loader occurred, and what they took in all."""
    # the loop makes its first iterator before training begins
    creations = loader.creations[1:] if endless else loader.creations
    firsts = {*loader.begins} - {*range(skipped)}
    others = [w for i, w in enumerate(loader.waits) if i >= skipped and i not in firsts]
    usual_s = statistics.median(others)
    startup_s, wait_s = math.fsum(creations), math.fsum(others)
    for index in firsts:
        excess_s = max(loader.waits[index] - (usual_s if index else 0.0), 0.0)
        startup_s += excess_s
        wait_s += loader.waits[index] - excess_s
    return {
        'data_wait': (len(loader.waits) - skipped, wait_s),
        'startup': (len(loader.begins), startup_s),
        'teardown': (len(loader.ends), math.fsum(loader.ends)),
        'resume': (skipped, math.fsum(loader.waits[:skipped])),
    }


def _hooks_s(stamps: dict[str, list[float]]) -> float:
    """All hook points of training, with what is nested taken off."""
    return math.fsum(stamps['hooks']) - math.fsum(stamps['checkpoint_save'])


def _part(name: str, stamps: Sequence[float], measured_s: float) -> Part:
    count = len(stamps)
    return Part(name, count, math.fsum(stamps) / count, measured_s / count)


def main(argv: Sequence[str] | None = None) -> int:
    """Run every scene and print the table."""
    benchmark = Benchmark('ledger', __doc__ or '', argv)
    # torch >= 2.6 refuses to resume MMEngine's checkpoints otherwise
    os.environ['TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD'] = '1'
    warnings.filterwarnings('ignore', message='Environment variable TORCH_FORCE')
    torch.set_num_threads(1)
    for name, arguments in SCENES.items():
        scene = run_scene(arguments)
        for part in scene.parts:
            note = f'{part.occurrences} times'
            if part.name == 'data_wait':
                note += f'; data_time of MMEngine: {1000 * scene.data_time_s:.1f} ms'
            benchmark.add(
                Figure(
                    f'{name} | {part.name}',
                    1000 * part.measured_s,
                    'ms',
                    f'{1000 * part.planted_s:.2f} +- {1000 * part.limit_s:.2f}',
                    abs(part.measured_s - part.planted_s) <= part.limit_s,
                    note,
                )
            )
        benchmark.add(
            Figure(
                f'{name} | parts over wall clock',
                100 * scene.closing,
                '%',
                f'100 +- {100 * CLOSES_WITHIN:g}',
                abs(scene.closing - 1) <= CLOSES_WITHIN,
            )
        )
        benchmark.add(
            Figure(
                f'{name} | other',
                100 * scene.other,
                '%',
                f'<= {100 * OTHER_AT_MOST:g}',
                scene.other <= OTHER_AT_MOST,
            )
        )
    return benchmark.finish()


if __name__ == '__main__':
    sys.exit(main())
