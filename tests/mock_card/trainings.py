"""Runs trainings on the mock driver's GPUs with known GPU values."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from mmgpu_hooks.judge.run import Run
from training.detection import Task, train_all
from training.toy import evidence_of

CONFIG = """\
custom_imports = dict(imports=['mock_card.card', 'mmgpu_hooks'])
custom_hooks = [
    dict(type='training.toy.LossTape', path='losses.json'),
    {hook}
]
default_hooks = dict(
    logger=dict(type='LoggerHook', interval={interval}),
    checkpoint=dict(type='CheckpointHook', interval=-1),
)
env_cfg = dict(cudnn_benchmark={benchmark})
model = {model}
train_dataloader = dict(
    batch_size={batch_size}, num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(type='training.toy.{dataset}', length={length}),
    collate_fn=dict(type='pseudo_collate'),
)
train_cfg = dict(by_epoch=True, max_epochs=1)
optim_wrapper = dict(optimizer=dict(type='SGD', lr=0.01))
randomness = dict(seed=3)
visualizer = dict(type='Visualizer', vis_backends=[dict(type='LocalVisBackend')])
"""

SOURCE = 'MMGPU_MOCK_CARD'
"""Environment variable with the folder of ``driver/`` and ``fakegpu_src/``."""

CARDS = Path('driver/cards.yaml')
"""Path of the mock driver's configuration, relative to a training's folder.

The driver takes it from the environment at start, which all forked trainings share."""


def merge(base: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Merges a nested mapping into a dict, in place."""
    for name, value in more.items():
        if isinstance(value, Mapping) and name in base:
            merge(base[name], value)
        else:
            base[name] = value


def write_cards(
    source: Path,
    folder: Path,
    kind: str,
    defaults: Mapping[str, Any],
    devices: Mapping[int, Mapping[str, Any]] = MappingProxyType({}),
) -> None:
    """Writes the mock driver's configuration into a training's folder.

    Args:
        source: The folder with ``driver/``.
        folder: That the process will run in.
        kind: Of the cards, such as ``h100``.
        defaults: Set for all of them.
        devices: Set for one, by its index.
    """
    original = source / 'driver' / f'mock-nvml-config-{kind}.yaml'
    config = yaml.safe_load(original.read_text())
    merge(config['device_defaults'], defaults)
    for index, more in devices.items():
        merge(config['devices'][index], more)
    cards = folder / CARDS
    cards.parent.mkdir(parents=True)
    # JSON is YAML in which no two readers differ about what is a number
    cards.write_text(json.dumps(config).replace('"OWN_PID"', 'OWN_PID'))


@dataclass(frozen=True)
class Training:
    """Training on a mock GPU, with the files that it left."""

    folder: Path

    @property
    def work_dir(self) -> Path:
        """Work_dir of the training."""
        return self.folder / 'work_dir'

    @cached_property
    def run(self) -> Run:
        """Recorded run, read from the training's evidence file."""
        return Run(evidence_of(self.work_dir))

    @property
    def printed(self) -> str:
        """Logs that the training printed."""
        return (self.folder / 'training.log').read_text()

    @property
    def losses(self) -> list[str]:
        """Loss of each iteration as exact text."""
        losses: list[str] = json.loads((self.folder / 'losses.json').read_text())
        return losses


@dataclass(frozen=True)
class MockCards:
    """Trainer on the mock driver's GPUs: eight of one kind, or four of type T4.

    Args:
        source: The folder with ``driver/``.
        folder: Of which each training has a folder.
    """

    source: Path
    folder: Path
    tasks: dict[str, Task] = field(default_factory=dict)
    """Planned trainings by name."""

    def train(self) -> dict[str, int]:
        """Runs the planned trainings, four at a time; returns exit codes by name."""
        tasks = dict(self.tasks)
        self.tasks.clear()
        environ = {
            SOURCE: str(self.source),
            'LD_LIBRARY_PATH': str(self.source / 'driver'),
            'MOCK_NVML_CONFIG': str(CARDS),
            'MOCK_NVML_OVERRIDES_TTL': '10ms',
        }
        return train_all(tasks, at_once=4, **environ)

    def plan(
        self,
        name: str,
        kind: str = 'h100',
        *,
        iterations: int = 20,
        step_s: float = 0.05,
        interval: int = 5,
        dataset: str = 'ToyDataset',
        batch_size: int = 2,
        benchmark: bool = False,
        model: Mapping[str, Any] = MappingProxyType({}),
        hook: Mapping[str, Any] | None = MappingProxyType({}),
        driver: Mapping[str, Any] = MappingProxyType({}),
        **environ: str,
    ) -> Training:
        """Plans a training of a small model with MMDetection's ``train.py``.

        Args:
            name: Of it.
            kind: Of the cards.
            iterations: Of its one epoch.
            step_s: That a step sleeps.
            interval: Iterations of a log line.
            dataset: Class of ``training.toy``.
            batch_size: Images of a batch.
            benchmark: Whether cuDNN times its algorithms.
            model: Arguments of `HungryModel`.
            hook: Arguments of ours; ``None`` leaves it out.
            driver: Set for all cards in the driver's configuration.
            environ: More environment.
        """
        text = CONFIG.format(
            hook='' if hook is None else f'{dict(hook, type="GPUEfficiencyHook")},',
            interval=interval,
            model=dict(model, type='mock_card.small.HungryModel', step_s=step_s),
            length=batch_size * iterations,
            dataset=dataset,
            batch_size=batch_size,
            benchmark=benchmark,
        )
        return self.plan_config(name, text, kind, driver=driver, **environ)

    def plan_config(
        self,
        name: str,
        text: str,
        kind: str = 'h100',
        *,
        driver: Mapping[str, Any] = MappingProxyType({}),
        **environ: str,
    ) -> Training:
        """Plans a training of any config that imports ``mock_card.card``."""
        folder = self.folder / name
        write_cards(self.source, folder, kind, driver)
        (folder / 'config.py').write_text(text)
        words = ['config.py', '--work-dir', 'work_dir']
        environ = {'MOCK_CARD_PROFILE': kind, **environ}
        self.tasks[name] = Task(words, str(folder / 'training.log'), environ)
        return Training(folder)


class SquareWave(threading.Thread):
    """Thread that sets a mock GPU's utilisation to a square wave and records it.

    The card is a degree warmer each time it goes up.

    Args:
        training: On whose cards.
        pct: While it is up.
        up_s: Seconds up.
        down_s: Seconds down.
    """

    def __init__(
        self, training: Training, pct: int, *, up_s: float, down_s: float
    ) -> None:
        super().__init__(daemon=True)
        self._path = training.folder / CARDS.with_name('overrides.yaml')
        self._pct = pct
        self._lengths_s = up_s, down_s
        self._ended = threading.Event()
        self._changes: list[tuple[float, int]] = []
        self.temperature_c = 40
        self._plant(0)

    def run(self) -> None:
        due_s, turn = time.monotonic(), 0
        while not self._ended.is_set():
            self.temperature_c += turn % 2
            self._plant(0 if turn % 2 else self._pct)
            due_s += self._lengths_s[turn % 2]
            turn += 1
            self._ended.wait(max(due_s - time.monotonic(), 0.0))

    def _plant(self, pct: int) -> None:
        part = self._path.with_suffix('.part')
        planted = {
            'utilization': {'gpu': pct, 'memory': 0},
            'thermal': {'temperature_gpu_c': self.temperature_c},
        }
        part.write_text(json.dumps({'version': 1, 'all': planted}))
        part.replace(self._path)
        self._changes.append((time.time(), pct))

    def stop(self) -> None:
        """Stops changing the mock GPU's utilisation."""
        self._ended.set()
        self.join()

    def planted(self, begin_s: float, end_s: float) -> tuple[float, float]:
        """Returns the set utilisation's mean, and its share of time at 0, in %."""
        total = zero_s = 0.0
        ends = [when for when, _ in self._changes[1:]] + [end_s]
        for (when, pct), until in zip(self._changes, ends, strict=True):
            seconds = max(min(until, end_s) - max(when, begin_s), 0.0)
            total += pct * seconds
            zero_s += seconds * (pct == 0)
        return total / (end_s - begin_s), 100 * zero_s / (end_s - begin_s)
