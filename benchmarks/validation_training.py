"""Program of ``benchmarks.validation``: trains with validations of known duration.

``python -m benchmarks.validation_training CASE FOLDER``, with torchrun for two ranks.

What is planted stamps itself: each rank leaves the seconds of its parts beside its
evidence, by validation. None of it knows how the hook takes a validation apart.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed
from mmengine.dataset import DefaultSampler, pseudo_collate
from mmengine.evaluator import BaseMetric
from mmengine.hooks import Hook

from benchmarks.toy import HOOK, SAVES, OneWeight, Sized, build_runner

TRUTH, ETAS = 'planted_{}.json', 'etas.json'
"""File names of true seconds and of ETAs, which each rank writes to the work_dir."""
_SLOW_RANK = 1


@dataclass(frozen=True)
class Planted:
    """Known seconds of each part of a validation.

    Attributes:
        item_s: Of loading one batch, in the loop.
        forward_s: Of predicting it.
        process_s: Of each metric's ``process``, batch by batch.
        metrics_s: Of each metric's ``compute_metrics``.
        pickle_s: Of writing, and of reading, the result of one batch.
        late_s: By which the second rank is late at the end of its loop.
        save_s: Of saving the best.
        kept_bytes: That the first metric keeps of each batch.
        batches: Of each rank.
        ranks: How many.
    """

    item_s: float = 0.0
    forward_s: float = 0.0
    process_s: tuple[float, ...] = (0.0,)
    metrics_s: tuple[float, ...] = (0.0,)
    pickle_s: float = 0.0
    late_s: float = 0.0
    save_s: float = 0.0
    kept_bytes: int = 0
    batches: int = 40
    ranks: int = 1


CASES = {
    'loader': Planted(item_s=0.03, forward_s=0.005),
    'forward': Planted(forward_s=0.03, item_s=0.005),
    'process': Planted(process_s=(0.03,), forward_s=0.005),
    'two metrics': Planted(process_s=(0.01, 0.02), metrics_s=(0.5, 0.9)),
    'saving the best': Planted(forward_s=0.01, save_s=0.3),
    'results that grow': Planted(process_s=(0.005,), kept_bytes=2**21),
    'two ranks': Planted(
        forward_s=0.01,
        metrics_s=(0.6,),
        pickle_s=0.005,
        late_s=0.4,
        batches=20,
        ranks=2,
    ),
}

Seconds = dict[str, float]


class Tape:
    """Record of the true seconds of the current validation, by part."""

    def __init__(self) -> None:
        self.seconds: Seconds = defaultdict(float)
        self.validations: list[Seconds] = []
        self.asked_s = 0.0
        """``perf_counter`` time at which the loader began the current batch."""

    def spend(self, part: str, seconds: float) -> None:
        """Sleeps for the given time as a validation part; records the true duration."""
        if seconds:
            began_s = time.perf_counter()
            time.sleep(seconds)
            self.seconds[part] += time.perf_counter() - began_s


TAPE = Tape()


class PlantedDataset(Sized):
    """Data set whose images take a known time to load."""

    def __init__(self, length: int, item_s: float) -> None:
        super().__init__(length)
        self._item_s = item_s

    def __getitem__(self, index: int) -> dict[str, Any]:
        time.sleep(self._item_s)
        return {'inputs': torch.zeros(1), 'data_samples': index}


class StampedSampler(DefaultSampler):
    """Sampler that records when the loading of each batch starts.

    A batch of planted images takes the loader some time of its own, too: some 0.4 ms on
    a slow machine.
    """

    def __iter__(self) -> Iterator[int]:
        indices = super().__iter__()
        while True:
            TAPE.asked_s = time.perf_counter()
            index = next(indices, None)
            if index is None:
                return
            yield index


def collate_stamped(batch: list[Any]) -> Any:
    """Collate function that records the seconds since loading of the batch began."""
    collated = pseudo_collate(batch)
    TAPE.seconds['data_wait'] += time.perf_counter() - TAPE.asked_s
    return collated


class PlantedModel(OneWeight):
    """Model whose predictions take a known time.

    Args:
        planted: What is planted.
        steps: Seconds of a training step by its number, from 0 on.
    """

    def __init__(self, planted: Planted, steps: Callable[[int], float]) -> None:
        super().__init__()
        self._planted, self._steps, self._done = planted, steps, 0

    def forward(self, *args: Any, mode: str = '', **more: Any) -> Any:
        if mode == 'loss':
            time.sleep(self._steps(self._done))
            self._done += 1
            return super().forward()
        TAPE.spend('forward', self._planted.forward_s)
        return [0.0]


class SlowToSend:
    """Result object that takes a known time to pickle and unpickle."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __reduce__(self) -> tuple[Any, ...]:
        TAPE.spend('written', self._seconds)
        TAPE.seconds['written_at'] = time.perf_counter()
        return _read_slowly, (self._seconds,)


def _read_slowly(seconds: float) -> SlowToSend:
    TAPE.spend('read', seconds)
    return SlowToSend(seconds)


class PlantedMetric(BaseMetric):
    """Metric whose methods take a known time.

    Args:
        planted: What is planted.
        number: Of the metric.
    """

    def __init__(self, planted: Planted, number: int) -> None:
        super().__init__(prefix=f'metric_{number}')
        self._planted, self._number = planted, number

    def process(self, data_batch: Any, data_samples: Any) -> None:
        planted = self._planted
        TAPE.spend('process', planted.process_s[self._number])
        result: Any = None
        if planted.kept_bytes:
            began_s = time.perf_counter()
            # its pages take the kernel a millisecond and more
            result = np.ones(planted.kept_bytes // 8)
            TAPE.seconds['process'] += time.perf_counter() - began_s
        if planted.pickle_s:
            result = SlowToSend(planted.pickle_s)
        self.results.append(result)
        is_end = len(self.results) == planted.batches
        if is_end and planted.late_s and torch.distributed.get_rank() == _SLOW_RANK:
            TAPE.spend('process', planted.late_s)

    def evaluate(self, size: int) -> Any:
        TAPE.seconds['entered_at'] = time.perf_counter()
        return super().evaluate(size)

    def compute_metrics(self, results: list[Any]) -> dict[str, float]:
        TAPE.spend('metric', self._planted.metrics_s[self._number])
        TAPE.seconds['computed_at'] = time.perf_counter()
        return {'score': 1.0}


class SecondMetric(PlantedMetric):
    """Subclass of PlantedMetric, so that a validation has metrics of two names."""


class SavesBest(Hook):
    """Hook that takes a known time to save a checkpoint after each validation."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def after_val_epoch(self, runner: Any, metrics: Any = None) -> None:
        if self._seconds:
            began_s = time.perf_counter()
            runner.save_checkpoint(runner.work_dir, 'best.pth')
            TAPE.seconds['save'] += time.perf_counter() - began_s

    def before_save_checkpoint(self, runner: Any, checkpoint: Any) -> None:
        time.sleep(self._seconds)


class WallClock(Hook):
    """Hook that records the total duration of each validation.

    Args:
        folder: Gets what was planted.
    """

    priority = 'HIGHEST'

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def before_val(self, runner: Any) -> None:
        TAPE.seconds = defaultdict(float)
        self._began_s = time.perf_counter()

    def after_val(self, runner: Any) -> None:
        TAPE.seconds['wall'] = time.perf_counter() - self._began_s
        TAPE.validations.append(dict(TAPE.seconds))
        path = self._folder / TRUTH.format(runner.rank)
        path.write_text(json.dumps(TAPE.validations))


def plant(name: str, folder: Path) -> None:
    """Trains two short epochs, each with a validation of known duration."""
    planted = CASES[name]
    more: dict[str, Any] = {}
    if planted.ranks > 1:
        torch.distributed.init_process_group('gloo')
        wrapper = {'type': 'MMDistributedDataParallel', 'device_ids': None}
        more = {
            'launcher': 'pytorch',
            'env_cfg': {'dist_cfg': {'backend': 'gloo'}},
            'cfg': {'model_wrapper_cfg': wrapper},
        }
    length = planted.batches * planted.ranks
    kinds = [PlantedMetric, SecondMetric][: len(planted.metrics_s)]
    build_runner(
        PlantedModel(planted, lambda _: 0.002),
        PlantedDataset(20 * planted.ranks, 0.0),
        folder,
        hooks={'gpu_efficiency': HOOK},
        train_cfg={'by_epoch': True, 'max_epochs': 2},
        custom_hooks=[SavesBest(planted.save_s), WallClock(folder)],
        **validate(planted, length, kinds),
        **more,
    ).train()


def validate(
    planted: Planted, length: int, kinds: list[type[PlantedMetric]]
) -> dict[str, Any]:
    """Returns Runner arguments for a validation whose parts take known times."""
    return {
        'val_dataloader': {
            'dataset': PlantedDataset(length, planted.item_s),
            'batch_size': 1,
            'num_workers': 0,
            'sampler': {'type': StampedSampler, 'shuffle': False},
            'collate_fn': {'type': collate_stamped},
        },
        'val_cfg': {},
        'val_evaluator': [
            {'type': kind, 'planted': planted, 'number': number}
            for number, kind in enumerate(kinds)
        ],
    }


@dataclass(frozen=True)
class Length:
    """Iterations, step and validation seconds of a training whose end is predicted.

    Attributes:
        loop: Of ``train_cfg``.
        iterations: Of an epoch, or of all.
        steps: Seconds of a step by its number.
        saves: Of CheckpointHook.
        loader: Settings of the train loader.
        metric_s: Of each validation, in its metric.
    """

    loop: dict[str, Any]
    iterations: int
    steps: Callable[[int], float] = lambda _: 0.012
    saves: dict[str, Any] | None = None
    loader: dict[str, Any] | None = None
    metric_s: float = 0.15


_EPOCHS = {'by_epoch': True, 'max_epochs': 20, 'val_interval': 1}
LENGTHS = {
    'epochs': Length(_EPOCHS, 50, saves={'interval': 1, 'by_epoch': True}),
    'epochs, workers start anew': Length(
        _EPOCHS, 50, loader={'num_workers': 2, 'persistent_workers': False}
    ),
    'epochs, validated more often at the end': Length(
        {**_EPOCHS, 'val_interval': 2, 'dynamic_intervals': [(16, 1)]},
        50,
        metric_s=0.4,
    ),
    'iterations': Length(
        {'by_epoch': False, 'max_iters': 1000, 'val_interval': 50},
        1000,
        saves={'interval': 100},
        metric_s=0.3,
    ),
    'slows down': Length(
        {'by_epoch': False, 'max_iters': 1200, 'val_interval': 100},
        1200,
        # 10 ms would grow by 1 ms in a tenth: less than their noise on a small host
        steps=lambda number: 0.03 * (1 + number / 1200),
    ),
    'slower from a twentieth on': Length(
        {'by_epoch': False, 'max_iters': 1200, 'val_interval': 100},
        1200,
        steps=lambda number: 0.01 if number < 60 else 0.015,
    ),
}


class EtaTape(Hook):
    """Hook that records the ETA by MMEngine in each iteration.

    Args:
        folder: Gets it.
    """

    priority = 'LOWEST'

    def __init__(self, folder: Path) -> None:
        self._folder, self._etas = folder, dict[int, float]()

    def after_train_iter(self, runner: Any, batch_idx: int, **rest: Any) -> None:
        self._etas[runner.iter + 1] = runner.message_hub.get_info('eta')

    def after_train(self, runner: Any) -> None:
        (self._folder / ETAS).write_text(json.dumps(self._etas))


def last(name: str, folder: Path) -> None:
    """Runs a complete training whose end is predicted."""
    length = LENGTHS[name]
    planted = Planted(metrics_s=(length.metric_s,), batches=4)
    saves = {'interval': -1, 'save_last': False, **(length.saves or {})}
    build_runner(
        PlantedModel(planted, length.steps),
        PlantedDataset(length.iterations, 0.0),
        folder,
        loader=length.loader,
        hooks={'gpu_efficiency': HOOK, 'checkpoint': {**SAVES, **saves}},
        train_cfg=length.loop,
        log_processor={'by_epoch': length.loop['by_epoch']},
        custom_hooks=[EtaTape(folder)],
        **validate(planted, 4, [PlantedMetric]),
    ).train()


def demo(folder: Path, root: Path) -> None:
    """Trains RTMDet-tiny for an epoch and validates it with CocoMetric.

    Args:
        folder: Of the run.
        root: Of the demo's images.
    """
    from mmdet.utils import register_all_modules
    from mmengine.config import Config
    from mmengine.runner import Runner

    register_all_modules(init_default_scope=False)
    config = Config.fromfile('configs/demo/rtmdet-tiny_demo.py')
    size = (128, 128)
    config.merge_from_dict(
        {
            'work_dir': str(folder),
            'train_dataloader.dataset.data_root': f'{root}/',
            'train_dataloader.dataset.indices': 40,
            'train_cfg.max_epochs': 1,
            'log_level': 'ERROR',
        }
    )
    pipeline = [
        {'type': 'LoadImageFromFile'},
        {'type': 'Resize', 'scale': size, 'keep_ratio': True},
        {'type': 'Pad', 'size': size, 'pad_val': {'img': (114, 114, 114)}},
        {'type': 'LoadAnnotations', 'with_bbox': True},
        {
            'type': 'PackDetInputs',
            'meta_keys': (
                'img_id',
                'img_path',
                'ori_shape',
                'img_shape',
                'scale_factor',
            ),
        },
    ]
    config.val_dataloader = {
        'batch_size': 4,
        'num_workers': 0,
        'sampler': {'type': 'DefaultSampler', 'shuffle': False},
        'dataset': {
            'type': 'CocoDataset',
            'data_root': f'{root}/',
            'ann_file': 'annotations.json',
            'data_prefix': {'img': 'images/'},
            'metainfo': config.train_dataloader.dataset.metainfo,
            'test_mode': True,
            'indices': 40,
            'pipeline': pipeline,
        },
    }
    config.val_cfg = {'type': 'ValLoop'}
    config.val_evaluator = {
        'type': 'CocoMetric',
        'ann_file': f'{root}/annotations.json',
        'metric': 'bbox',
    }
    config.default_hooks.gpu_efficiency = HOOK
    runner = Runner.from_cfg(config)
    runner.register_hook(WallClock(folder), 'HIGHEST')
    runner.train()


def main() -> None:
    """Trains the case that is named on the command line."""
    name, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    if name == 'demo':
        demo(folder, Path(sys.argv[3]))
    elif name in CASES:
        plant(name, folder)
    else:
        last(name, folder)
    # workers and threads of a gloo group take their time to end
    sys.stdout.flush()
    os._exit(0)


if __name__ == '__main__':
    main()
