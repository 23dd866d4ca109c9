"""Benchmark: do MMDetection's own small configs gain from recommended settings?

    python -m benchmarks.zoo [--only NAME] [--quick] [--output]

Model, pipeline, optimizer, schedule and loader settings are MMDetection's own. Changed
are what a CPU and no download ask for: painted images in COCO's size, two classes, no
pretrained weights, two images a batch, one epoch without validation. Each config is
trained once with the hook; ``mmgpu recommend`` judges it, and where that changes
something ``mmgpu verify`` trains old and new settings in turns. What is recommended for
this machine says nothing of another one: MMDetection's are meant for eight cards.
About 30 minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmengine.config import Config

from benchmarks.harness import (
    Benchmark,
    Figure,
    OtherLoad,
    exactly,
    find_evidence,
    find_mmdet,
)
from benchmarks.markdown import render_table
from benchmarks.whole import phrase_changes, run, train
from mmgpu_hooks.experiment.demo_dataset import CATEGORIES, write_demo_dataset

MINUTES, QUICK_MINUTES = 5.0, 3.0
"""Time budget in minutes of a comparison by ``mmgpu verify``: full and quick run."""

WIDTH, HEIGHT = 640, 480
"""Image size in pixels: the most frequent size in COCO."""

BATCH_SIZE = 2

_LOADER = ('num_workers', 'prefetch_factor', 'persistent_workers')


@dataclass(frozen=True)
class Model:
    """MMDetection config to train, and if its backbone would download weights.

    Attributes:
        config: Its path below MMDetection's ``configs``.
        pretrained: Whether its backbone would be downloaded.
    """

    config: str
    pretrained: bool = False


MODELS: Mapping[str, Model] = {
    'RTMDet-tiny': Model('rtmdet/rtmdet_tiny_8xb32-300e_coco.py', pretrained=True),
    'YOLOX-tiny': Model('yolox/yolox_tiny_8xb8-300e_coco.py'),
    'SSDLite': Model('ssd/ssdlite_mobilenetv2-scratch_8xb24-600e_coco.py'),
    'YOLOv3': Model('yolo/yolov3_mobilenetv2_8xb24-320-300e_coco.py', pretrained=True),
}
QUICK = ('SSDLite',)


@dataclass(frozen=True)
class Result:
    """Recommendation for one MMDetection config, and its measured gain."""

    model: Model
    loader: Mapping[str, Any]
    """DataLoader settings of the config before the recommendation."""
    iter_s: float
    """Median seconds of an iteration with the config's own loader settings."""
    judged: Mapping[str, Any]
    """JSON answer of ``mmgpu recommend``."""
    verified: Mapping[str, Any] | None
    """JSON answer of ``mmgpu verify``; ``None`` if no change was recommended."""


def write_config(model: Model, path: Path) -> dict[str, Any]:
    """Writes an MMDetection config that trains on the demo's images.

    Args:
        model: The model.
        path: Of the config.

    Returns:
        MMDetection's settings of the training loader.
    """
    config = Config.fromfile(find_mmdet() / 'configs' / model.config)
    config.default_hooks.gpu_efficiency = dict(type='mmgpu_hooks.GPUEfficiencyHook')
    config.default_hooks.logger.interval = 5
    config.default_hooks.checkpoint.interval = -1
    loader = config.train_dataloader
    own = {name: loader[name] for name in _LOADER if name in loader}
    loader.batch_size = BATCH_SIZE
    innermost = loader.dataset
    while 'dataset' in innermost:
        if 'times' in innermost:
            # one epoch is one time through the images
            innermost.times = 1
        innermost = innermost.dataset
    innermost.update(
        data_root='data/demo/',
        ann_file='annotations.json',
        data_prefix=dict(img='images/'),
        metainfo=dict(classes=CATEGORIES),
    )
    config.model.bbox_head.num_classes = len(CATEGORIES)
    if model.pretrained:
        config.model.backbone.init_cfg = None
    config.train_cfg.max_epochs = 1
    for part in ('cfg', 'dataloader', 'evaluator'):
        config[f'val_{part}'] = config[f'test_{part}'] = None
    config.dump(path)
    return own


def prepare(folder: Path) -> None:
    """Creates a folder for trainings that contains the demo's images."""
    shutil.rmtree(folder, ignore_errors=True)
    kept = folder.with_name('bench_zoo_demo')
    write_demo_dataset(kept, width=WIDTH, height=HEIGHT)
    (folder / 'data').mkdir(parents=True)
    (folder / 'data' / 'demo').symlink_to(kept.resolve())


def measure(name: str, folder: Path, minutes: float, load: list[float]) -> Result:
    """Trains a config, gets a recommendation and measures its gain.

    Args:
        name: Of the model.
        folder: Of the configs; trainings go below it.
        minutes: Time budget of the comparison.
        load: Gets the share of the machine that other programs used in each part.
    """
    model, config = MODELS[name], f'{Path(MODELS[name].config).stem}.py'
    loader = write_config(model, folder / config)
    work_dir = f'work_dirs/{Path(config).stem}'
    watch = OtherLoad()
    trained = train(folder, config, work_dir)
    load.append(watch.read_pct())
    evidence = str(find_evidence(folder / work_dir).relative_to(folder))
    asked = ['mmgpu_hooks', 'recommend', evidence, '--dry-run', '--format', 'json']
    judged = json.loads(run(folder, asked))
    verified = None
    if judged['changes']:
        watch = OtherLoad()
        asked = ['mmgpu_hooks', 'verify', work_dir, '--format', 'json']
        verified = json.loads(run(folder, [*asked, '--max-minutes', str(minutes)]))
        load.append(watch.read_pct())
    return Result(model, loader, trained.iter_s, judged, verified)


def phrase_gain(gain: Mapping[str, float] | None) -> str:
    """Returns a text of a speed-up and its confidence interval, in per cent."""
    if gain is None:
        return ''
    value, low, high = (100 * gain[key] for key in ('value', 'low', 'high'))
    return f'{value:+.0f} % ({low:+.0f} to {high:+.0f})'


def list_figures(results: Mapping[str, Result]) -> Iterator[Figure]:
    """Returns figures over all configs: gain by recommended settings and slow-downs."""
    verified = {
        name: result.verified['gain']
        for name, result in results.items()
        if result.verified is not None
    }
    slower = [name for name, gain in verified.items() if gain['high'] < 0]
    yield exactly(
        'surely slower as recommended', len(slower), 0, note=', '.join(slower)
    )
    for name, gain in verified.items():
        yield Figure(f'{name}: images per second more', 100 * gain['value'], '%')


def render_models(results: Mapping[str, Result]) -> str:
    """Renders a table of each config's recommendation and its measured gain."""
    head = ['model', "MMDetection's loader", 'iteration', 'verdict']
    head += ['recommended', 'predicted', 'measured by `mmgpu verify`']
    rows = []
    for name, result in results.items():
        changes = {each['key']: each['new'] for each in result.judged['changes']}
        verified = result.verified or {}
        predicted = verified.get('predicted_gain')
        rows.append(
            [
                f'{name} (`{result.model.config}`)',
                phrase_changes(result.loader),
                f'{1000 * result.iter_s:.0f} ms',
                result.judged['verdict']['name'],
                phrase_changes(changes),
                '' if predicted is None else f'{100 * predicted:+.0f} %',
                phrase_gain(verified.get('gain')),
            ]
        )
    return render_table(head, rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark: trains, recommends and verifies for each config."""
    parser = argparse.ArgumentParser()
    parser.add_argument('--only', default='', help='models whose name holds this')
    benchmark = Benchmark('zoo', __doc__ or '', argv, parser=parser)
    chosen = QUICK if benchmark.is_quick else MODELS
    names = [name for name in chosen if benchmark.options.only in name]
    if not names:
        parser.error(f'expected a part of a name of {", ".join(MODELS)}')
    os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:2]))
    folder = Path('work_dirs/bench_zoo').resolve()
    prepare(folder)
    minutes = QUICK_MINUTES if benchmark.is_quick else MINUTES
    results = {
        name: measure(name, folder, minutes, benchmark.shares_pct) for name in names
    }
    benchmark.add(*list_figures(results))
    return benchmark.finish(render_models(results))


if __name__ == '__main__':
    sys.exit(main())
