"""Makes the first record of an evidence file: config, host and plan of a training."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from collections.abc import Mapping
from typing import Any

from mmengine.hooks import CheckpointHook
from mmengine.model import is_model_wrapper
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop
from msgspec import structs

from mmgpu_hooks.config.hook_arguments import is_our_hook
from mmgpu_hooks.hooks.figure_source import SourceName
from mmgpu_hooks.hooks.recording import Recording
from mmgpu_hooks.hooks.sources import Sources
from mmgpu_hooks.judge.validation_findings import COCO_METRIC
from mmgpu_hooks.measure.clock import wall_unix_s
from mmgpu_hooks.measure.flight_recorder import list_dump_prefixes
from mmgpu_hooks.measure.job_end import read_end_unix_s
from mmgpu_hooks.measure.loader.settings import read_loader_settings
from mmgpu_hooks.measure.memory import weigh_objects
from mmgpu_hooks.measure.now import read_process_identity
from mmgpu_hooks.measure.slurm import parse_job_id
from mmgpu_hooks.optimize.counts import count_overhead
from mmgpu_hooks.schema.recorded import (
    LoaderSettings,
    RunRecord,
    TrainingPlan,
    ValInterval,
)
from mmgpu_hooks.version import __version__


def describe_training(
    recording: Recording,
    sources: Sources,
    *,
    build_s: float,
    interval: int,
    unknown: Mapping[str, str],
) -> RunRecord:
    """Makes the evidence file's first record, right before training begins.

    Args:
        recording: The run.
        sources: Its sources, opened.
        build_s: Seconds from building the hook to the train loop.
        interval: Iterations of an interval.
        unknown: Reasons of figures that are missing, by source or figure; what the
            guard has switched off by now is added.
    """
    runner, hook, run = recording.runner, recording.hook, recording.guard.run
    loop, path = runner.train_loop, runner.cfg.filename
    wrapper, world = runner.optim_wrapper, runner.world_size
    # a source that fails here is in `unknown` below
    plan = run('schedule', describe_plan, runner)
    fast_metric = run('metric', find_fast_metric, runner)
    overhead = run(SourceName.HOST_OVERHEAD, count_overhead, runner)
    return RunRecord(
        started_unix_s=wall_unix_s(),
        build_s=build_s,
        hook_added_by=hook.added_by,
        before_hook_s=hook.before_hook_s,
        dataset_bytes=hook.dataset_bytes,
        rank=runner.rank,
        world_size=world,
        work_dir=os.path.abspath(runner.work_dir),
        config_path=path and os.path.abspath(path),
        loop=_loop_kind(loop),
        max_epochs=_whole(getattr(loop, 'max_epochs', None)),
        max_iters=_whole(getattr(loop, 'max_iters', None)),
        start_iteration=_whole(getattr(loop, 'iter', None)) or 0,
        interval_iterations=interval,
        accumulative_counts=_whole(getattr(wrapper, '_accumulative_counts', None)),
        optim_wrapper=type(wrapper).__name__,
        parameters=_count_parameters(runner.model),
        is_model_wrapped=is_model_wrapper(runner.model) if world > 1 else None,
        device=sources.device,
        cudnn_benchmark=sources.gpu.cudnn_benchmark,
        worker_nice=hook.worker_nice,
        optimized=hook.optimized,
        overhead=overhead,
        hook_place=_find_place(runner.cfg),
        loader=_describe_loader(runner.train_dataloader),
        host=sources.host,
        gpu=sources.gpu.device,
        versions=_versions(),
        unknown={**unknown, **recording.guard.off},
        plan=plan,
        fast_metric=fast_metric,
        **_describe_process(uses_nccl=world > 1 and sources.device == 'cuda'),
    )


def _describe_process(*, uses_nccl: bool) -> dict[str, Any]:
    """Returns record fields that identify this process: host, pid, start, cgroup."""
    identity = read_process_identity()
    return {
        'hostname': identity.hostname,
        'pid': identity.pid,
        'process_start': identity.start_ticks,
        'memory_cgroup': identity.memory_cgroup,
        'oom_kills': identity.oom_kills,
        'slurm_job_id': parse_job_id(os.environ),
        'slurm_end_unix_s': read_end_unix_s(os.environ),
        'flight_recorder': list_dump_prefixes(os.environ) if uses_nccl else (),
    }


def _count_parameters(model: Any) -> int | None:
    # a lazy module has none before its first batch
    with contextlib.suppress(Exception):
        return sum(int(parameter.numel()) for parameter in model.parameters())
    return None


def _describe_loader(loader: Any) -> LoaderSettings:
    """Returns a DataLoader's settings, and the bytes of objects its dataset holds."""
    settings, objects = read_loader_settings(loader), None
    with contextlib.suppress(Exception):  # a thread of the user's may change it now
        objects = weigh_objects(getattr(loader, 'dataset', None))
    if objects is None:
        return settings
    return structs.replace(
        settings,
        object_bytes=objects.bytes,
        object_count=objects.entries,
        object_name=objects.name,
    )


def _find_place(config: Mapping[str, Any]) -> str | None:
    """Finds GPUEfficiencyHook's dotted config key; ``None`` if it is in no config."""
    named = dict(config.get('default_hooks') or {})
    listed = list(config.get('custom_hooks') or ())
    places = {f'default_hooks.{name}': hook for name, hook in named.items()}
    places |= {f'custom_hooks.{index}': hook for index, hook in enumerate(listed)}
    for place, hook in places.items():
        kind = hook.get('type') if isinstance(hook, Mapping) else type(hook)
        if is_our_hook(kind):
            return place
    return None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def describe_plan(runner: Any) -> TrainingPlan | None:
    """Returns a Runner's schedule of validations and checkpoint saves.

    Returns:
        ``None`` of a loop of another class than MMEngine's.
    """
    loop = runner.train_loop
    kind = _loop_kind(loop)
    if kind not in ('epoch', 'iter'):
        return None
    intervals: list[ValInterval] = []
    if getattr(runner, '_val_loop', None) is not None:
        milestones = getattr(loop, 'dynamic_milestones', [0])
        lengths = getattr(loop, 'dynamic_intervals', [loop.val_interval])
        intervals += [
            ValInterval(begin=int(begin), interval=max(int(length), 1))
            for begin, length in zip(milestones, lengths)
        ]
    begin = max(int(loop.val_begin), 0)
    plan = TrainingPlan(val_intervals=tuple(intervals), val_begin=begin)
    saving = [hook for hook in runner.hooks if isinstance(hook, CheckpointHook)]
    for hook in saving[:1]:
        # an iteration-based training is one epoch to it
        is_lone_epoch = hook.by_epoch and kind == 'iter'
        has_interval = hook.interval > 0 and not is_lone_epoch
        plan = structs.replace(
            plan,
            save_interval=int(hook.interval) if has_interval else None,
            saves_by_epoch=bool(hook.by_epoch),
            save_begin=int(getattr(hook, 'save_begin', 0)),
            saves_last=bool(hook.save_last),
        )
    return plan


def find_fast_metric(runner: Any) -> str | None:
    """Returns whether and how a config can replace CocoMetric by FastCocoMetric.

    Returns:
        ``None`` where nothing validates.
    """
    evaluator = getattr(getattr(runner, '_val_loop', None), 'evaluator', None)
    metrics = getattr(evaluator, 'metrics', None)
    if metrics is None:
        return None
    if not any(map(_is_faster, metrics)):
        return 'no'
    given = runner.cfg.get('val_evaluator')
    if given is None:  # a Runner that was built without a config
        return 'key' if len(metrics) == 1 else 'list'
    # a dict of another type has its metrics in a list, too
    kind = given.get('type') if isinstance(given, Mapping) else None
    name = kind if isinstance(kind, str) else getattr(kind, '__name__', '')
    return 'key' if name.rpartition('.')[2] == COCO_METRIC else 'list'


def _is_faster(metric: Any) -> bool:
    """True if a metric is a CocoMetric with arguments that FastCocoMetric speeds up."""
    kind = type(metric)
    # MMPose has a CocoMetric of its own
    is_coco = kind.__name__ == COCO_METRIC and kind.__module__.startswith('mmdet.')
    return (
        is_coco
        and getattr(metric, '_coco_api', None) is not None
        and getattr(metric, 'outfile_prefix', None) is None
        and not getattr(metric, 'format_only', False)
        and not getattr(metric, 'use_mp_eval', False)
    )


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
