"""Makes of a user's config, in memory, the one that a trial trains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmgpu_hooks.config.consistency import complete_settings
from mmgpu_hooks.config.loading import parse_flat
from mmgpu_hooks.config.outcome import REMOVE
from mmgpu_hooks.config.request import HOOK_KEY, HOOK_TYPE, is_our_hook
from mmgpu_hooks.schema import TrialSpec

_WITHOUT_VALIDATION = (
    'val_cfg',
    'val_dataloader',
    'val_evaluator',
    'test_cfg',
    'test_dataloader',
    'test_evaluator',
)

_CONTENT_OF_SAVES = ('save_optimizer', 'save_param_scheduler')
"""Arguments of MMEngine's CheckpointHook that say what a checkpoint holds."""

_DEFAULT_SEED = 0


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
    config.launcher = 'pytorch' if spec.ranks > 1 else 'none'
    config.resume = False
    for key in _WITHOUT_VALIDATION:
        config[key] = None
    _set_hooks(config, spec)
    if config.get('visualizer'):
        config.visualizer['vis_backends'] = [{'type': 'LocalVisBackend'}]
    _set_seed(config)
    return config


def _set(config: Any, spec: TrialSpec) -> None:
    wanted = {
        key: REMOVE if value is None else value for key, value in spec.settings.items()
    }
    complete = complete_settings(parse_flat(config.to_dict()), wanted)
    set_to = {key: value for key, value in complete.items() if value is not REMOVE}
    config.merge_from_dict(set_to)
    for key, value in complete.items():
        if value is REMOVE:
            *parents, last = key.split('.')
            holder = config
            for parent in parents:
                holder = holder.get(parent, {})
            holder.pop(last, None)


def _set_hooks(config: Any, spec: TrialSpec) -> None:
    hooks = dict(config.get('default_hooks') or {})
    custom = list(config.get('custom_hooks') or [])
    ours = [hook for hook in (*hooks.values(), *custom) if is_our_hook(_kind(hook))]
    hooks = {name: hook for name, hook in hooks.items() if hook not in ours}
    custom = [hook for hook in custom if hook not in ours]
    if spec.evidence:
        # what the user had set of it stays
        recorder = dict(ours[0]) if ours else {}
        recorder.update(type=HOOK_TYPE, summary=False)
        if spec.interval is not None:
            recorder['interval'] = spec.interval
        hooks[HOOK_KEY] = {**recorder, **spec.hook}
    if spec.save_interval is not None:
        saver = _find_saver(hooks)
        custom = [hook for hook in custom if not _saves(hook)]
        hooks = {name: hook for name, hook in hooks.items() if not _saves(hook)}
        hooks['checkpoint'] = _at_interval(saver, spec.save_interval)
    else:
        # MMEngine would put its own one in the place of one that is merely missing
        hooks['checkpoint'] = None
        custom = [hook for hook in custom if not _saves(hook)]
    config.default_hooks = hooks
    config.custom_hooks = custom


def _find_saver(hooks: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config's own checkpoint hook; nothing where it has none."""
    saver = hooks.get('checkpoint')
    return saver if isinstance(saver, Mapping) else {}


def _at_interval(saver: Mapping[str, Any], interval: int) -> dict[str, Any]:
    """A checkpoint hook that writes what the config's own would, but on this host."""
    content = {key: saver[key] for key in _CONTENT_OF_SAVES if key in saver}
    return {
        'type': 'CheckpointHook',
        'by_epoch': False,
        'interval': interval,
        'max_keep_ckpts': 1,
        'save_last': False,
        **content,
    }


def _kind(hook: Any) -> Any:
    return hook.get('type') if isinstance(hook, dict) else type(hook)


def _saves(hook: Any) -> bool:
    kind = _kind(hook)
    name = kind if isinstance(kind, str) else getattr(kind, '__name__', '')
    return bool(name.endswith('CheckpointHook'))


def _set_seed(config: Any) -> None:
    randomness = dict(config.get('randomness') or {})
    if randomness.get('seed') is None:
        randomness['seed'] = _DEFAULT_SEED
    config.randomness = randomness
