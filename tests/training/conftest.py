"""Trainings that several modules look at, each run once per session."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fakes.nvml.fixtures import fake_nvml, fake_nvml_library
from mmgpu_hooks.experiment.demo_dataset import write_demo_dataset
from training.detection import TrainServer, render_config
from training.faults import train_and_look
from training.toy import losses_of

__all__ = ['detections', 'fake_nvml', 'fake_nvml_library', 'images']

ITERATIONS = 12
LOGGED = [3, 6, 9, 12]
"""Iterations at which something is logged; an epoch has 6."""


@dataclass(frozen=True)
class Detections:
    """MMDetection trainings with and without the hook, all on one seed."""

    folder: Path

    def work_dir(self, name: str) -> Path:
        """Folder of one training."""
        return self.folder / name

    def losses(self, name: str) -> list[str]:
        """Its losses, bit by bit."""
        losses: list[str] = json.loads((self.folder / f'{name}.json').read_text())
        return losses

    def log(self, name: str) -> str:
        """What it printed."""
        return (self.folder / f'{name}.log').read_text()


@pytest.fixture(scope='session')
def train_server() -> Iterator[TrainServer]:
    """Runs trainings of MMDetection."""
    server = TrainServer()
    yield server
    server.close()


@pytest.fixture(scope='session')
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve small JPEG files with COCO annotations."""
    root = tmp_path_factory.mktemp('images')
    write_demo_dataset(root, images=ITERATIONS, width=128, height=96)
    return root


PLAIN = 'plain'
# one training for each way to name the hook, and each of those in another
# combination of train loop and workers
CUSTOM_IMPORTS = 'custom_imports'
DEFAULT_HOOKS = 'default_hooks'
DOTTED = 'dotted'
CFG_OPTIONS = 'cfg_options'

CASES = {
    CUSTOM_IMPORTS: ('epoch', 0),
    DEFAULT_HOOKS: ('epoch', 2),
    DOTTED: ('iter', 0),
    CFG_OPTIONS: ('iter', 2),
}

_TAILS = {
    CUSTOM_IMPORTS: (
        "custom_imports = dict(imports=['mmgpu_hooks'])\n"
        "custom_hooks = [dict(type='GPUEfficiencyHook')]"
    ),
    DOTTED: "custom_hooks = [dict(type='mmgpu_hooks.GPUEfficiencyHook')]",
}
# of another loader than training's, and the test's by reference, as most configs
_VALIDATION = """
train_cfg = dict(max_epochs=2, val_interval=1, dynamic_intervals=None)
val_cfg, test_cfg = dict(type='ValLoop'), dict(type='TestLoop')
val_dataloader = dict(
    batch_size=1, num_workers=1, persistent_workers=True, drop_last=False,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='CocoDataset', test_mode=True,
        data_root='{images}/', ann_file='annotations.json',
        data_prefix=dict(img='images/'),
        metainfo=dict(classes=('rectangle', 'ellipse')),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='Resize', scale=(64, 64), keep_ratio=True),
            dict(type='Pad', size=(64, 64), pad_val=dict(img=(114, 114, 114))),
            dict(type='LoadAnnotations', with_bbox=True),
            dict(type='PackDetInputs'),
        ],
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(
    type='CocoMetric', metric='bbox', ann_file='{images}/annotations.json')
test_evaluator = val_evaluator
"""

_OURS = "gpu_efficiency=dict(type='mmgpu_hooks.GPUEfficiencyHook'), "
_OPTION = 'default_hooks.gpu_efficiency.type=mmgpu_hooks.GPUEfficiencyHook'


@pytest.fixture(scope='session')
def detections(
    images: Path, train_server: TrainServer, tmp_path_factory: pytest.TempPathFactory
) -> Detections:
    """Each case with the hook (by its name) and without (``plain_`` before it)."""
    folder = tmp_path_factory.mktemp('detections')
    trainings = {}
    for case, (loop, workers) in CASES.items():
        for name in (case, f'{PLAIN}_{case}'):
            is_ours = name == case
            tape = f"dict(type='training.toy.LossTape', path='{folder / name}.json')"
            # MMEngine formats the whole config at each save, in seconds
            interval = 1 if case == DEFAULT_HOOKS else -1
            hooks = f'tape={tape}, checkpoint=dict(interval={interval}), '
            if is_ours and case == DEFAULT_HOOKS:
                hooks += _OURS
            tail = _TAILS.get(case, '') if is_ours else ''
            if case == DEFAULT_HOOKS:
                tail += _VALIDATION.format(images=images)
            text = render_config(
                images,
                default_hooks=hooks,
                # it would sleep two seconds where it begins its images anew
                batch_size=1 if loop == 'iter' else 2,
                num_workers=workers,
                log_interval=LOGGED[0],
                epochs=2,
                iterations=ITERATIONS if loop == 'iter' else None,
                tail=tail,
            )
            config = folder / f'{name}_config.py'
            config.write_text(text)
            words = [str(config), '--work-dir', str(folder / name)]
            if is_ours and case == CFG_OPTIONS:
                words += ['--cfg-options', _OPTION]
            trainings[name] = words
    train_server.train(trainings, folder)
    return Detections(folder)


@pytest.fixture(scope='module')
def plain_losses(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp('plain')
    return losses_of(train_and_look(folder, hook=None).runner)
