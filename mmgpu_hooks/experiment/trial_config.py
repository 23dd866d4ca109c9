"""Makes of a user's config, in memory, the one that a trial trains."""

from __future__ import annotations

from typing import Any

from mmgpu_hooks.config.loading import parse_flat
from mmgpu_hooks.config.settings import (
    HOOK_KEY,
    HOOK_TYPE,
    complete_settings,
    is_our_hook,
)
from mmgpu_hooks.schema.tried import TrialSpec

_VALIDATION = ('val_cfg', 'val_dataloader', 'val_evaluator')
_TEST = ('test_cfg', 'test_dataloader', 'test_evaluator')
_CONTENT_OF_SAVES = ('save_optimizer', 'save_param_scheduler')
"""Arguments of MMEngine's CheckpointHook that say what a checkpoint holds."""


def read_trial_config(spec: TrialSpec) -> Any:
    """Load the config of a trial, with MMEngine.

    What trains stays: model, data, schedule and every hook that belongs to them. Out
    go validation, logging to anywhere but the trial's folder, resuming and, unless
    asked for, saves. Saves at an interval of the trial's own go to its folder, with
    what the config would put into them.

    Args:
        spec: Which config, and what to set in it.

    Returns:
        MMEngine's ``Config``, nothing written.

    Raises:
        Exception: Whatever MMEngine, the config itself, or a setting that cannot be
            made, raises.
    """
    from mmengine.config import Config

    config = Config.fromfile(spec.config)
    _set(config, spec)
    config.work_dir = spec.folder
    config.launcher = 'none'
    config.resume = False
    if spec.is_whole:
        return config
    for key in (*_VALIDATION, *_TEST):
        config[key] = None
    _set_hooks(config, spec)
    if config.get('visualizer'):
        config.visualizer['vis_backends'] = [{'type': 'LocalVisBackend'}]
    randomness = dict(config.get('randomness') or {})
    if randomness.get('seed') is None:
        randomness['seed'] = 0
    config.randomness = randomness
    return config


def _set(config: Any, spec: TrialSpec) -> None:
    complete = complete_settings(parse_flat(config.to_dict()), spec.settings)
    config.merge_from_dict({k: v for k, v in complete.items() if v is not None})
    for key in [key for key, value in complete.items() if value is None]:
        *parents, last = key.split('.')
        holder = config
        for parent in parents:
            holder = holder.get(parent, {})
        holder.pop(last, None)


def _set_hooks(config: Any, spec: TrialSpec) -> None:
    given = dict(config.get('default_hooks') or {})
    custom = list(config.get('custom_hooks') or [])
    ours = [hook for hook in (*given.values(), *custom) if is_our_hook(_kind(hook))]
    saver = given.get('checkpoint')
    hooks = {name: hook for name, hook in given.items() if _stays(hook)}
    # MMEngine would put its own in the place of one that is merely missing
    hooks['checkpoint'] = None
    if spec.hook is not None:
        # what the user had set of it stays
        own = dict(ours[0]) if ours else {}
        fixed = {'type': HOOK_TYPE, 'summary': False}
        hooks[HOOK_KEY] = {**own, **fixed, **spec.hook}
    if spec.save_interval is not None:
        content = dict(saver) if isinstance(saver, dict) else {}
        hooks['checkpoint'] = {
            'type': 'CheckpointHook',
            'by_epoch': False,
            'interval': spec.save_interval,
            'max_keep_ckpts': 1,
            'save_last': False,
            **{key: content[key] for key in _CONTENT_OF_SAVES if key in content},
        }
    config.default_hooks = hooks
    config.custom_hooks = list(filter(_stays, custom))


def _kind(hook: Any) -> Any:
    return hook.get('type') if isinstance(hook, dict) else type(hook)


def _stays(hook: Any) -> bool:
    """Whether it neither saves nor is ours."""
    kind = _kind(hook)
    name = kind if isinstance(kind, str) else getattr(kind, '__name__', '')
    return not (is_our_hook(kind) or name.endswith('CheckpointHook'))
