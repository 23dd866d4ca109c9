"""Trainings that several modules look at, each run once per session."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from fakes.nvml.fixtures import fake_nvml, fake_nvml_library
from mmgpu_hooks.experiments.demo_dataset import write_demo_dataset
from training.detection import render_config, train_forked

__all__ = ['detections', 'fake_nvml', 'fake_nvml_library', 'images', 'one_thread']

ITERATIONS = 20


@pytest.fixture(autouse=True, scope='session')
def one_thread() -> None:
    """Threads that wait for each other on few cores would be most of a toy's step."""
    torch.set_num_threads(1)


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
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty small JPEG files with COCO annotations."""
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
_OURS = "gpu_efficiency=dict(type='mmgpu_hooks.GPUEfficiencyHook'), "
_OPTION = 'default_hooks.gpu_efficiency.type=mmgpu_hooks.GPUEfficiencyHook'


@pytest.fixture(scope='session')
def detections(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Detections:
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
            text = render_config(
                images,
                default_hooks=hooks,
                num_workers=workers,
                epochs=2,
                iterations=ITERATIONS if loop == 'iter' else None,
                tail=_TAILS.get(case, '') if is_ours else '',
            )
            config = folder / f'{name}_config.py'
            config.write_text(text)
            words = [str(config), '--work-dir', str(folder / name)]
            if is_ours and case == CFG_OPTIONS:
                words += ['--cfg-options', _OPTION]
            trainings[name] = words
    train_forked(trainings, folder)
    return Detections(folder)
