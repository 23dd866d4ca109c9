"""Program of ``benchmarks.start``: trains and writes the true seconds of the start.

    python -m benchmarks.start_training FOLDER SPEC

``SPEC`` is JSON: what is planted, in seconds by part, or which real start it is. In the
folder it leaves ``truth_RANK.json``: the seconds as the planted code itself measured
them, and the age of the process when the first iteration ended.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from mmengine.dataset import BaseDataset
from mmengine.hooks import Hook
from mmengine.registry import DATASETS, MODELS
from mmengine.runner import CheckpointLoader, Runner
from torch import distributed

from benchmarks.toy import HOOK, OneWeight, build_runner

LENGTH = 64
PREFIX, BACKEND = 'planted://', 'planted'
"""URL scheme of slow checkpoints, and name of a slow torch.compile backend."""
STARTED = 'MMGPU_BENCH_STARTED'
"""Environment variable with the process's start time on the monotonic clock."""

_truth: dict[str, float] = {}


def plant(part: str, seconds: float) -> None:
    """Sleeps as a part of the training's start, and records the true duration."""
    begun_s = time.perf_counter()
    time.sleep(seconds)
    _truth[part] = _truth.get(part, 0.0) + time.perf_counter() - begun_s


@DATASETS.register_module()
class SlowAnnotations(BaseDataset):
    """Data set whose annotations take a known time to parse.

    Args:
        parse_s: Seconds that it sleeps in parsing.
        files: Small files that it reads beside.
        batch_s: Seconds that its first sample takes.
    """

    def __init__(
        self, parse_s: float = 0.0, files: str = '', batch_s: float = 0.0, **more: Any
    ) -> None:
        self._parse_s, self._files, self._batch_s = parse_s, files, batch_s
        super().__init__(pipeline=[], **more)

    def load_data_list(self) -> list[dict[str, Any]]:
        begun_s = time.perf_counter()
        for path in sorted(Path(self._files).iterdir()) if self._files else ():
            path.read_text()
        time.sleep(self._parse_s)
        _truth['read'] = time.perf_counter() - begun_s
        return [{'img_id': number} for number in range(LENGTH)]

    def __getitem__(self, index: int) -> dict[str, Any]:
        if self._batch_s:
            plant('first_batch', self._batch_s)
            self._batch_s = 0.0
        return {'inputs': torch.zeros(3, 8, 8), 'data_samples': index}


@MODELS.register_module()
class PlantedStart(OneWeight):
    """Model whose initialisation and first train step take a known time.

    Args:
        weights_s: Seconds of ``init_weights``.
        step_s: Of the first step.
    """

    def __init__(self, weights_s: float = 0.0, step_s: float = 0.0) -> None:
        super().__init__()
        self._weights_s, self._step_s = weights_s, step_s

    def init_weights(self) -> None:
        plant('weights', self._weights_s)

    def forward(self, *args: Any, **more: Any) -> Any:
        if self._step_s:
            plant('first_step', self._step_s)
            self._step_s = 0.0
        return super().forward()


class Aged(Hook):
    """Hook that records the process's age in seconds after the first iteration."""

    priority = 56

    def after_train_iter(self, runner: Any, batch_idx: int, *_: Any, **__: Any) -> None:
        if 'age' not in _truth:
            _truth['age'] = time.monotonic() - float(os.environ[STARTED])


def time_method(owner: Any, name: str, part: str) -> None:
    """Wraps a class's method so that its calls add to a start part's true seconds."""
    original: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(original)
    def timed(*args: Any, **kwargs: Any) -> Any:
        begun_s = time.perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            _truth[part] = _truth.get(part, 0.0) + time.perf_counter() - begun_s

    setattr(owner, name, timed)


def plant_checkpoint(folder: str, seconds: float) -> str:
    """Registers weights that take a given time to load; returns their ``load_from``."""
    path = Path(folder, 'weights.pth')
    torch.save({'state_dict': PlantedStart().state_dict()}, path)

    def load(filename: str, *_: Any, **__: Any) -> Any:
        plant('load', seconds)
        return torch.load(filename.removeprefix(PREFIX), weights_only=True)

    CheckpointLoader.register_scheme(PREFIX, load)
    return f'{PREFIX}{path}'


def plant_compile(seconds: float) -> dict[str, Any]:
    """Registers a slow backend of torch.compile; returns the config's ``compile``.

    It is what needs no compiler of C: the graph runs as it was traced. The first step,
    in which it is traced, is timed around what MMEngine has compiled.
    """
    original = Runner._maybe_compile

    def compile_graph(graph: Any, inputs: Any) -> Any:
        if seconds and 'graphs' not in _truth:
            _truth['graphs'] = 0.0
            time.sleep(seconds)
        return graph.forward

    def timed(runner: Any, target: str) -> None:
        begun_s = time.perf_counter()
        # importing it is what takes long, and is part of compiling
        torch._dynamo.register_backend(compile_graph, name=BACKEND)
        original(runner, target)
        compiled = getattr(runner.model, target)

        def first(*args: Any, **kwargs: Any) -> Any:
            begun_s = time.perf_counter()
            setattr(runner.model, target, compiled)
            try:
                return compiled(*args, **kwargs)
            finally:
                _truth['first_step'] = time.perf_counter() - begun_s

        setattr(runner.model, target, first)
        _truth['compile'] = time.perf_counter() - begun_s

    Runner._maybe_compile = timed
    return {'backend': BACKEND}


def build(folder: str, spec: dict[str, Any]) -> Any:
    """Returns a Runner whose start takes known seconds in each part."""
    hooks = {'gpu_efficiency': {**HOOK, **spec.get('hook', {})}, 'aged': {'type': Aged}}
    kind = spec['kind']
    if kind == 'demo':
        from mmengine.config import Config

        config = Config.fromfile(spec['config'])
        config.work_dir = folder
        config.train_cfg.max_epochs = 1
        config.default_hooks.gpu_efficiency = hooks['gpu_efficiency']
        runner = Runner.from_cfg(config)
        # a class would not survive the config's dump
        runner.register_hook(Aged())
        return runner
    if kind == 'coco':
        from mmdet.datasets import CocoDataset
        from mmdet.utils import register_all_modules

        register_all_modules(init_default_scope=False)
        if not spec.get('hook'):
            # a method that is another one is parsed anew, and notes what it does
            time_method(CocoDataset, 'load_data_list', 'read')
        dataset = {
            'type': 'mmdet.CocoDataset',
            'ann_file': spec['file'],
            'data_prefix': {'img': ''},
            'metainfo': {'classes': tuple(f'class {number}' for number in range(80))},
            'filter_cfg': {'filter_empty_gt': True, 'min_size': 32},
            # no image is loaded: there is none
            'pipeline': [NoImage()],
        }
    else:
        dataset = {'type': 'SlowAnnotations', **spec['data']}
    # Runners need a config of their own for ranks that share no card
    wrapper = {'type': 'MMDistributedDataParallel', 'device_ids': None}
    more: dict[str, Any] = {}
    if spec.get('ranks'):
        more = {
            'launcher': 'pytorch',
            'env_cfg': {'dist_cfg': {'backend': 'gloo'}},
            'cfg': {'model_wrapper_cfg': wrapper},
        }
    if spec.get('load_s'):
        more['load_from'] = plant_checkpoint(folder, spec['load_s'])
    if spec.get('compile_s'):
        more['cfg'] = {'compile': plant_compile(spec['compile_s'])}
    return build_runner(
        {'type': 'PlantedStart', **spec.get('model', {})},
        dataset,
        folder,
        hooks=hooks,
        loader={'num_workers': spec.get('num_workers', 0)},
        train_cfg={'by_epoch': False, 'max_iters': 6},
        log_processor={'by_epoch': False},
        **more,
    )


class NoImage:
    """Transform that makes a sample without reading an image file."""

    def __call__(self, results: dict[str, Any]) -> dict[str, Any]:
        return {'inputs': torch.zeros(3, 8, 8), 'data_samples': results['img_id']}


def main() -> None:
    """Trains, and writes the true seconds of each part of the start to a file."""
    folder, spec = sys.argv[1], json.loads(sys.argv[2])
    torch.set_num_threads(1)
    rank = int(os.environ.get('RANK', '0'))
    if spec.get('ranks'):
        distributed.init_process_group('gloo')
    runner = build(folder, spec)
    runner.train()
    smaps = Path('/proc/self/smaps_rollup').read_text()
    pss = next(line for line in smaps.splitlines() if line.startswith('Pss:'))
    _truth['pss_kib'] = float(pss.split()[1])
    _truth.pop('graphs', None)
    Path(folder, f'truth_{rank}.json').write_text(json.dumps(_truth))


if __name__ == '__main__':
    main()
