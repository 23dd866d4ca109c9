"""A toy training whose validations have a loader of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from training.toy import (
    LossTape,
    ToyDataset,
    ToyMetric,
    build_runner,
    open_files,
    train,
)

BATCHES = 24


def validate(
    work_dir: Path,
    num_workers: int,
    *,
    persistent: bool = False,
    batches: int = BATCHES,
    item_s: float = 0.0,
    metric: dict[str, Any] | None = None,
    cfg: dict[str, Any] | None = None,
    **arguments: Any,
) -> Any:
    """Train, with validations that have a loader of their own; the runner."""
    files = open_files()
    arguments = {'iterations': 4, 'epochs': 2, **arguments}
    runner = build_runner(
        work_dir,
        custom_hooks=[LossTape()],
        val_dataloader={
            'dataset': ToyDataset(batches, item_s),
            'sampler': {'type': 'DefaultSampler', 'shuffle': False},
            'batch_size': 1,
            'num_workers': num_workers,
            'persistent_workers': persistent,
        },
        val_cfg=cfg or {},
        val_evaluator=metric or {'type': ToyMetric},
        **arguments,
    )
    loader = runner.val_dataloader
    try:
        train(runner)
    finally:
        if persistent and loader._iterator is not None:
            loader._iterator._shutdown_workers()
    # what a loader has open is its own affair
    left = open_files() - files
    assert not [name for name in left if name.startswith('/proc')]
    assert '_get_iterator' not in vars(loader)
    assert loader.worker_init_fn is None or 'mmgpu' not in repr(loader.worker_init_fn)
    return runner
