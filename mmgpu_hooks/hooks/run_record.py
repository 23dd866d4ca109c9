"""Reads from a runner what analysis will need to know later, elsewhere."""

from __future__ import annotations

import os
import platform
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop

from mmgpu_hooks.measure.host.now import read_identity
from mmgpu_hooks.measure.loader.settings import read_loader_settings
from mmgpu_hooks.schema import GpuDevice, HostLimits, RunRecord
from mmgpu_hooks.version import __version__


def read_run_record(
    runner: Any,
    *,
    started_unix_s: float,
    interval_iterations: int,
    host: HostLimits,
    gpu: GpuDevice | None,
    device: str,
    worker_nice: int | None,
    unknown: Mapping[str, str],
) -> RunRecord:
    """Describe a run that is about to train.

    Args:
        runner: The runner, its train loop built and resumed.
        started_unix_s: Wall-clock label.
        interval_iterations: Iterations per interval.
        host: What the host allows.
        gpu: The card trained on; ``None`` with a reason in ``unknown``.
        device: ``cuda`` or ``cpu``.
        worker_nice: What the workers' nice value is set to, if it is.
        unknown: Reasons, by source.
    """
    loop = runner.train_loop
    wrapper = runner.optim_wrapper
    return RunRecord(
        run_id=uuid.uuid4().hex,
        started_unix_s=started_unix_s,
        rank=runner.rank,
        world_size=runner.world_size,
        work_dir=os.path.abspath(runner.work_dir),
        config_path=_config_path(runner.cfg),
        config_copy=str(vis_data_folder(runner) / 'config.py'),
        loop=_loop_kind(loop),
        max_epochs=_whole(getattr(loop, 'max_epochs', None)),
        max_iters=_whole(getattr(loop, 'max_iters', None)),
        start_iteration=_whole(getattr(loop, 'iter', None)) or 0,
        interval_iterations=interval_iterations,
        accumulative_counts=_whole(getattr(wrapper, '_accumulative_counts', None)),
        optim_wrapper=type(wrapper).__name__,
        device=device,
        worker_nice=worker_nice,
        loader=read_loader_settings(runner.train_dataloader),
        host=host,
        gpu=gpu,
        versions=_versions(),
        unknown=dict(unknown),
        **read_identity(),
    )


def vis_data_folder(runner: Any) -> Path:
    """The folder MMEngine's local backend writes to, absolute."""
    return Path(os.path.abspath(runner.log_dir)) / 'vis_data'


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _config_path(config: Any) -> str | None:
    name = getattr(config, 'filename', None)
    return os.path.abspath(name) if isinstance(name, (str, os.PathLike)) else None


def _loop_kind(loop: Any) -> str:
    if isinstance(loop, EpochBasedTrainLoop):
        return 'epoch'
    if isinstance(loop, IterBasedTrainLoop):
        return 'iter'
    return type(loop).__name__


def _versions() -> dict[str, str]:
    versions = {'mmgpu_hooks': __version__, 'python': platform.python_version()}
    # only what this training imported anyway; a fork goes by the same module names
    for name in ('torch', 'mmengine', 'mmcv', 'mmdet', 'mmpretrain', 'mmyolo'):
        version = getattr(sys.modules.get(name), '__version__', None)
        if version is not None:
            versions[name] = str(version)
    versions['platform'] = platform.platform()
    return versions
