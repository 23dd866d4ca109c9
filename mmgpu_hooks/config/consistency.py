"""Settings that entail, exclude or concern others. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping

from mmgpu_hooks.config.edit import HOOK_ROOTS
from mmgpu_hooks.config.loading import Container, FlatConfig, KeyPath
from mmgpu_hooks.config.outcome import REMOVE, RefusedError, Setting
from mmgpu_hooks.config.proof import is_same
from mmgpu_hooks.config.request import (
    HOOK_KEY,
    HOOK_TYPE,
    LOADERS,
    OBJECTS,
    is_our_hook,
)

_OF_WORKERS = (
    'persistent_workers',
    'prefetch_factor',
    'multiprocessing_context',
    'timeout',
)
"""Keys of a loader that PyTorch refuses when there are no workers."""

_KNOWN: tuple[str, ...] = (
    *_OF_WORKERS,
    'num_workers',
    'batch_size',
    'pin_memory',
    'pin_memory_device',
    'drop_last',
    'shuffle',
    'in_order',
    *OBJECTS,
    'num_batch_per_epoch',
)
"""The arguments of PyTorch's DataLoader, and what MMEngine takes out before."""

_OF_OUR_HOOK: tuple[str, ...] = (
    'type',
    'priority',
    'interval',
    'gpu_sample_period_s',
    'summary',
    'worker_nice',
    'stuck_after_s',
    'scalars',
)
_OF_SCALING: tuple[str, ...] = ('enable', 'base_batch_size')


def complete_settings(
    before: FlatConfig, wanted: Mapping[str, Setting]
) -> dict[str, Setting]:
    """Adds what the settings entail.

    ``num_workers=0`` takes out what only workers can have.

    Args:
        before: The loaded config.
        wanted: What is asked for.

    Raises:
        RefusedError: If PyTorch or MMEngine would refuse the combination.
    """
    complete = dict(wanted)
    for loader in LOADERS:
        workers = _value(before, wanted, f'{loader}.num_workers')
        if workers:
            continue
        asked = [
            key
            for key in _OF_WORKERS
            if wanted.get(f'{loader}.{key}', REMOVE) not in (REMOVE, False, None, 0)
        ]
        if asked:
            raise RefusedError(
                f'expected num_workers above 0 with {loader}.{asked[0]}, found '
                f'{0 if workers is None else workers}; PyTorch refuses that, set '
                f'{loader}.num_workers too'
            )
        for key in _OF_WORKERS if f'{loader}.num_workers' in wanted else ():
            dotted = f'{loader}.{key}'
            if dotted not in wanted and _value(before, {}, dotted):
                complete[dotted] = REMOVE
    scaled = wanted.get('auto_scale_lr.enable') is True
    base = _value(before, wanted, 'auto_scale_lr.base_batch_size')
    if scaled and not isinstance(base, int):
        raise RefusedError(
            'expected auto_scale_lr.base_batch_size with auto_scale_lr.enable, found '
            'none; set the batch size over all ranks that the learning rate is for'
        )
    return complete


def _value(before: FlatConfig, wanted: Mapping[str, Setting], dotted: str) -> object:
    if dotted in wanted:
        return None if wanted[dotted] is REMOVE else wanted[dotted]
    return before.get(tuple(dotted.split('.')))


def verify_present(config: FlatConfig, changes: Mapping[str, Setting]) -> None:
    """Refuses settings of something that the loaded config lacks.

    Raises:
        RefusedError: If a loader or hook is missing, or a setting is a container.
    """
    for dotted, value in changes.items():
        path = tuple(dotted.split('.'))
        if path[0] not in HOOK_ROOTS:
            _verify_dict(config, path[0])
        elif len(path) == _ARGUMENT:
            _verify_hook(config, path, value)
        whole = value is REMOVE and path[0] in HOOK_ROOTS
        if isinstance(config.get(path), Container) and not whole:
            raise RefusedError(
                f'expected a single value in {dotted}, found a dict or list; '
                'change it by hand'
            )


def verify_known(changes: Mapping[str, Setting], held: Collection[KeyPath]) -> None:
    """Refuses a misspelt key: one that neither its owner nor the config knows.

    Args:
        changes: By dotted key. To take a key out is no mistake.
        held: What the loaded config has.

    Raises:
        RefusedError: If there is one.
    """
    for dotted, value in changes.items():
        *place, key = dotted.split('.')
        if value is REMOVE or (*place, key) in held:
            continue
        owner, known = 'GPUEfficiencyHook', _OF_OUR_HOOK
        if place[0] in LOADERS:
            owner, known = "PyTorch's DataLoader", _KNOWN
            if (*place, 'type') in held:  # another class, with arguments of its own
                continue
        elif place[0] == 'auto_scale_lr':
            owner, known = "MMEngine's auto_scale_lr", _OF_SCALING
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f'did you mean {near[0]}?' if near else f'it has {", ".join(known)}'
            raise RefusedError(
                f'expected an argument of {owner}, found {dotted}; {hint}'
            )


def _verify_dict(config: FlatConfig, name: str) -> None:
    if name in LOADERS and (name,) not in config:
        raise RefusedError(
            f'expected a {name} in the config or its bases, found none; '
            'name the config that is trained'
        )
    found = config.get((name,), Container('dict', 0))
    if found != Container('dict', 0):
        kind = f'a {found.kind}' if isinstance(found, Container) else repr(found)
        raise RefusedError(
            f'expected {name} to be a dict, found {kind}; name the config that is '
            'trained, or change it by hand'
        )


_ARGUMENT = 3
"""Keys that lead to an argument of a hook; fewer lead to the hook as a whole."""


def _verify_hook(config: FlatConfig, path: tuple[str, ...], value: Setting) -> None:
    # Only our hook's own place may be filled, and only where it is free.
    adds = path == ('default_hooks', HOOK_KEY, 'type') and value == HOOK_TYPE
    if adds and path[:-1] not in config:
        return
    if not is_our_hook(config.get((*path[:-1], 'type'))):
        places = ', '.join('.'.join(place) for place in find_hooks(config))
        hint = f'it is at {places}' if places else 'switch it on with mmgpu enable'
        raise RefusedError(
            f'expected GPUEfficiencyHook at {".".join(path[:-1])}, found another or '
            f'none; {hint}'
        )


def find_hooks(config: FlatConfig) -> list[tuple[str, ...]]:
    """Lists where a loaded config holds our hook."""
    return [
        path[:-1]
        for path, value in config.items()
        if len(path) == 3
        and path[-1] == 'type'
        and path[0] in HOOK_ROOTS
        and is_our_hook(value)
    ]


def render_notes(
    config: FlatConfig,
    changes: Mapping[str, Setting],
    *,
    is_rate_told: bool = False,
) -> list[str]:
    """Says what the reader of a change should know about the rest of the config.

    Args:
        config: Loaded, before the change.
        changes: By dotted key.
        is_rate_told: Whether the learning rate is spoken of elsewhere.
    """
    notes = []
    if 'train_dataloader.batch_size' in changes:
        if not is_rate_told:
            notes.append(_learning_rate(config, changes))
        for key in ('sampler', 'batch_sampler'):
            size = config.get(('train_dataloader', key, 'batch_size'))
            if size is not None:
                notes.append(
                    f'train_dataloader.{key}.batch_size stays {size}; the sampler '
                    'may have to follow.'
                )
    # test_dataloader = val_dataloader is how most configs are written.
    moved = [key for key in changes if key.startswith('val_')]
    kept = [key for key in moved if f'test_{key[4:]}' not in changes]
    if kept and _is_twin(config, 'val_dataloader', 'test_dataloader'):
        notes.append(
            'test_dataloader was the same as val_dataloader and keeps what it had; '
            f'set test_{kept[0][4:]} too if it is to follow.'
        )
    return notes


def _learning_rate(config: FlatConfig, changes: Mapping[str, Setting]) -> str:
    base = _value(config, changes, 'auto_scale_lr.base_batch_size')
    if _value(config, changes, 'auto_scale_lr.enable'):
        return (
            'auto_scale_lr is on: MMEngine multiplies the learning rate by batch size '
            f'x ranks / {base}.'
        )
    if base is None:
        return 'The learning rate stays as it is: the config has no auto_scale_lr.'
    return (
        'The learning rate stays as it is: auto_scale_lr is off. It is meant for a '
        f'batch of {base} over all ranks; auto_scale_lr.enable=True has it scaled.'
    )


def _is_twin(config: FlatConfig, one: str, other: str) -> bool:
    left = {path[1:]: value for path, value in config.items() if path[:1] == (one,)}
    right = {path[1:]: value for path, value in config.items() if path[:1] == (other,)}
    return left.keys() == right.keys() and all(
        is_same(value, right[path]) for path, value in left.items()
    )
