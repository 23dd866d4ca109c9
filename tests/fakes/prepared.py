"""Writes a folder with the runs and configs that documented commands name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fakes.pooled import make_pooled
from fakes.runs import make_evidence, make_inside_workers, make_run, write_run
from mmgpu_hooks.schema.run import RunEvidence
from training.trial_toys import write_config


def make_starved(config: Path | None = None, **fields: Any) -> RunEvidence:
    """Returns a run with two workers, which are too few, on a host of eight cores."""
    run = make_run(config_path=str(config) if config else None)
    starved = {
        'workers': make_inside_workers(0.4),
        'data_wait_s': 0.1,
        'step_s': 0.1,
        'process_cpu_s': 20 * 0.03,
    }
    return make_evidence(run=run, **{**starved, **fields})


def prepare_config(folder: Path, name: str = 'mine.py', **fields: Any) -> Path:
    """Writes a config that can be trained; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    return write_config(folder, num_workers=2, **fields).rename(folder / name)


def prepare_folder(folder: Path) -> Path:
    """Writes ``configs/`` and ``work_dirs/``; returns the path of the runs' config."""
    for name in ('a.py', 'b.py'):
        prepare_config(folder / 'configs', name)
    config = prepare_config(folder / 'configs')
    for name in ('run1', 'run2', 'before', 'after', 'main', 'branch', 'mine'):
        write_run(folder / 'work_dirs' / name, make_starved(config))
    for name, settings in {
        'batch2': (2, 4),
        'batch4': (4, 4),
        'workers2': (4, 2),
        'workers8': (4, 8),
    }.items():
        evidence = make_pooled(*settings, run={'config_path': str(config)})
        write_run(folder / 'work_dirs' / name, evidence)
    for name in ('slurm-123.out', 'slurm-124.out'):
        (folder / name).write_text('RuntimeError: CUDA out of memory.\n')
    return config
