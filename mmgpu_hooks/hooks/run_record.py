"""Reads from a runner what analysis will need to know later, elsewhere."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop

from mmgpu_hooks.hooks.recording import Recording
from mmgpu_hooks.hooks.sources import Sources
from mmgpu_hooks.measure.clock import wall_unix_s
from mmgpu_hooks.measure.loader.settings import read_loader_settings
from mmgpu_hooks.measure.memory import weigh_objects
from mmgpu_hooks.measure.now import read_identity
from mmgpu_hooks.schema.recorded import LoaderSettings, RunRecord
from mmgpu_hooks.version import __version__


def read_run_record(
    recording: Recording,
    sources: Sources,
    *,
    build_s: float,
    interval_iterations: int,
    unknown: Mapping[str, str],
) -> RunRecord:
    """Describe a run that is about to train.

    Args:
        recording: The run, its train loop built and resumed.
        sources: What is measured beside time.
        build_s: Seconds from building the runner to its train loop.
        interval_iterations: Iterations per interval.
        unknown: Reasons, by source.
    """
    runner = recording.runner
    loop = runner.train_loop
    wrapper = runner.optim_wrapper
    return RunRecord(
        started_unix_s=wall_unix_s(),
        build_s=build_s,
        rank=runner.rank,
        world_size=runner.world_size,
        work_dir=os.path.abspath(runner.work_dir),
        config_path=_config_path(runner.cfg),
        loop=_loop_kind(loop),
        max_epochs=_whole(getattr(loop, 'max_epochs', None)),
        max_iters=_whole(getattr(loop, 'max_iters', None)),
        start_iteration=_whole(getattr(loop, 'iter', None)) or 0,
        interval_iterations=interval_iterations,
        accumulative_counts=_whole(getattr(wrapper, '_accumulative_counts', None)),
        optim_wrapper=type(wrapper).__name__,
        parameters=_count_parameters(runner.model),
        device=sources.device,
        worker_nice=recording.hook.worker_nice,
        loader=_describe_loader(runner.train_dataloader),
        host=sources.host,
        gpu=sources.gpu.device,
        versions=_versions(),
        unknown=dict(unknown),
        **read_identity(),
    )


def _count_parameters(model: Any) -> int | None:
    try:
        return sum(int(one.numel()) for one in model.parameters())
    except Exception:  # noqa: BLE001, a lazy module has none before its first batch
        return None


def _describe_loader(loader: Any) -> LoaderSettings:
    """Its settings, and what its dataset weighs: once, for it takes some 20 ms."""
    settings = read_loader_settings(loader)
    try:
        objects = weigh_objects(getattr(loader, 'dataset', None))
    except Exception:  # noqa: BLE001, a thread of the user's may change it meanwhile
        return settings
    if objects is None:
        return settings
    return msgspec.structs.replace(
        settings,
        object_bytes=objects.bytes,
        object_count=objects.entries,
        object_name=objects.name,
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
