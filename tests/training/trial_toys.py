"""Configs of toy trainings for trials, and data sets that fail in them."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import psutil
from torch import Tensor

from training.toy import ToyDataset

CONFIG = """\
model = dict(type='training.toy.ToyModel', step_s={step_s})
train_dataloader = dict(
    batch_size=2, num_workers={num_workers}, persistent_workers={num_workers} > 0,
    dataset=dict(type='{dataset}', length={length}, item_s={item_s}),
    sampler=dict(type='DefaultSampler', shuffle=True),
    collate_fn=dict(type='pseudo_collate'),
)
train_cfg = dict(by_epoch=True, max_epochs={epochs}, val_interval=1)
val_cfg = dict()
val_dataloader = dict(
    batch_size=2, num_workers=0, dataset=dict(type='training.toy.ToyDataset', length=2),
    sampler=dict(type='DefaultSampler', shuffle=False),
)
val_evaluator = dict(type='training.toy.ToyMetric', evaluation_s=600.)
optim_wrapper = dict(optimizer=dict(type='SGD', lr=0.01))
default_hooks = dict(
    checkpoint=dict(type='CheckpointHook', interval=1),
    logger=dict(type='LoggerHook', interval=5),
)
custom_hooks = [dict(type='EMAHook')]
visualizer = dict(
    type='Visualizer',
    vis_backends=[dict(type='LocalVisBackend'), dict(type='TensorboardVisBackend')])
"""
"""Config text whose validation takes ten minutes, so that it would be noticed."""

HOOKED = """
custom_hooks = [dict(type='mmgpu_hooks.GPUEfficiencyHook', interval=8)]
default_hooks = dict(
    checkpoint=dict(type='CheckpointHook', interval=-1, save_last=False))
val_cfg = val_dataloader = val_evaluator = None
visualizer = dict(type='Visualizer', vis_backends=[dict(type='LocalVisBackend')])
"""
"""Config text that adds the hook and disables saves and validations."""


DEFAULTS: dict[str, Any] = {
    'dataset': 'training.toy.ToyDataset',
    **{'num_workers': 0, 'item_s': 0.0, 'step_s': 0.0, 'length': 40, 'epochs': 1000},
}


def write_config(folder: Path, *, more: str = '', **settings: Any) -> Path:
    """Writes ``toy.py`` with the given settings into a folder; returns its path."""
    path = folder / 'toy.py'
    path.write_text(CONFIG.format(**{**DEFAULTS, **settings}) + more)
    return path


def processes_of(folder: Path) -> list[psutil.Process]:
    """Returns the processes that trials in a folder have left running."""
    found = []
    for process in psutil.process_iter(['cmdline', 'status']):
        words = ' '.join(process.info['cmdline'] or [])
        is_dead = process.info['status'] == psutil.STATUS_ZOMBIE
        if str(folder) in words and 'trial_child' in words and not is_dead:
            found.append(process)
    return found


class TroubledDataset(ToyDataset):
    """Data set that raises MemoryError or ignores SIGTERM."""

    def __init__(self, length: int, item_s: float = 0.0, trouble: str = '') -> None:
        super().__init__(length, item_s)
        self.trouble = trouble

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if self.trouble == 'memory':
            raise MemoryError('no memory for an image')
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
        return super().__getitem__(index)
