"""Checks requested config settings, and adds settings that follow from them; no I/O."""

from __future__ import annotations

import ast
import difflib
import math
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping

from mmgpu_hooks.config.edits import HOOK_ROOTS
from mmgpu_hooks.config.hook_arguments import ARGUMENTS, HOOK_TYPE, is_our_hook
from mmgpu_hooks.config.loading import (
    LOADERS,
    Container,
    FlatConfig,
    KeyPath,
    RefusedError,
    SettingValue,
    bare_name,
)
from mmgpu_hooks.config.registry import (
    LOADER_SETTINGS,
    OTHER_SETTINGS,
    RESTING,
    describe_refusal,
)
from mmgpu_hooks.config.syntax import Module, is_display, locate_setting, parse_entries
from mmgpu_hooks.schema.text import Text, listed, phrase, sentences
from mmgpu_hooks.schema.values import FAST_METRIC

HOOK_KEY = 'gpu_efficiency'
"""Key of ``default_hooks`` under which commands write GPUEfficiencyHook."""
_PLACE = ('default_hooks', HOOK_KEY)

EVALUATORS = ('val_evaluator', 'test_evaluator')
_METRICS = ('CocoMetric', 'FastCocoMetric')
"""Names of the COCO metric classes that a rewrite may exchange for one another."""
_METRIC_TYPES = (FAST_METRIC, 'CocoMetric', 'mmdet.CocoMetric')
"""Values of a COCO metric's ``type`` that a rewrite may write."""

_KEY = re.compile(
    r'((train|val|test)_dataloader|default_hooks\.[^\W\d]\w*)'
    rf'\.[^\W\d]\w*|{"|".join(map(re.escape, OTHER_SETTINGS))}',
    re.ASCII,
)
OF_WORKERS: dict[str, SettingValue] = {
    **RESTING,
    'multiprocessing_context': None,
    'timeout': 0,
}
"""DataLoader keys that need workers, each with PyTorch's value without workers."""

_OF_BATCHES = ('drop_last', 'num_batch_per_epoch', 'batch_sampler')
"""DataLoader keys that cannot be used with ``batch_size=None``."""
_OBJECTS = (
    'dataset',
    'sampler',
    'batch_sampler',
    'collate_fn',
    'worker_init_fn',
    'generator',
)
"""DataLoader keys from which MMEngine builds objects; plain values are refused."""

OF_MMENGINE = ('num_batch_per_epoch',)
"""DataLoader keys that MMEngine itself uses and does not pass on to PyTorch."""
OF_LOADER: tuple[str, ...] = (
    *(name for name in LOADER_SETTINGS if name not in (*OF_WORKERS, *OF_MMENGINE)),
    *OF_WORKERS,
    'pin_memory_device',
    'drop_last',
    'shuffle',
    'in_order',
    *OF_MMENGINE,
)
"""DataLoader keys that a config may have, PyTorch's and MMEngine's own."""
OF_OUR_HOOK: tuple[str, ...] = ('type', 'priority', *ARGUMENTS)
OF_RUNNER: tuple[str, ...] = (
    'model',
    'train_dataloader',
    'val_dataloader',
    'test_dataloader',
    'train_cfg',
    'val_cfg',
    'test_cfg',
    'val_evaluator',
    'test_evaluator',
    'optim_wrapper',
    'param_scheduler',
    'auto_scale_lr',
    'data_preprocessor',
    'default_hooks',
    'custom_hooks',
    'env_cfg',
    'randomness',
    'default_scope',
    'load_from',
    'resume',
    'launcher',
    'work_dir',
    'experiment_name',
    'log_processor',
    'log_level',
    'visualizer',
    'runner_type',
    'strategy',
    # read from the whole config
    'custom_imports',
    'compile',
    'sync_bn',
    'model_wrapper_cfg',
    'find_unused_parameters',
)
"""Top-level config names that MMEngine's Runner or FlexibleRunner reads.

Others are variables of the config, and used up when it has been read."""


def find_hooks(config: FlatConfig) -> list[KeyPath]:
    """Lists the key paths of GPUEfficiencyHook in a loaded config."""
    return [
        path[:-1]
        for path, value in config.items()
        if len(path) == 3
        and path[-1] == 'type'
        and path[0] in HOOK_ROOTS
        and is_our_hook(value)
    ]


def parse_settings(settings: Mapping[str, SettingValue]) -> dict[str, SettingValue]:
    """Checks keys and values of requested settings; returns values by dotted key.

    Raises:
        RefusedError: If a key is none that may be set or a value has no literal.
    """
    for dotted, value in settings.items():
        is_metric = dotted in [f'{name}.type' for name in EVALUATORS]
        if not is_metric and not _KEY.fullmatch(dotted):
            raise RefusedError(
                phrase(
                    'expected a setting such as train_dataloader.num_workers or '
                    'default_hooks.{hook_key}.interval, found {dotted!r}; only '
                    'settings of the dataloaders, our hook, {others} and '
                    'val_evaluator.type are rewritten',
                    hook_key=HOOK_KEY,
                    dotted=dotted,
                    others=tuple(OTHER_SETTINGS),
                )
            )
        expect_plain(dotted, value)
        root, _, key = dotted.partition('.')
        is_type = root in HOOK_ROOTS and key.endswith('.type')
        if is_type and (key, value) != (f'{HOOK_KEY}.type', HOOK_TYPE):
            raise RefusedError(
                phrase(
                    'expected an argument of our hook, found {dotted}, which '
                    'makes another hook of it; change it by hand',
                    dotted=dotted,
                )
            )
        if is_metric and value not in _METRIC_TYPES:
            raise RefusedError(
                phrase(
                    'expected {fast_metric} for {dotted}, or CocoMetric to take '
                    'it back, found {value!r}; change it by hand',
                    fast_metric=FAST_METRIC,
                    dotted=dotted,
                    value=value,
                )
            )
        if reason := describe_refusal(dotted, value):
            raise RefusedError(reason)
    return dict(settings)


def expect_plain(dotted: str, value: object) -> None:
    """Raises a `RefusedError` if a value is no bool, finite number, string or None.

    Raises:
        RefusedError: If it is a list, a dict, infinite or no number.
    """
    plain = value is None or type(value) in (bool, int, float, str)
    if not plain or (isinstance(value, float) and not math.isfinite(value)):
        raise RefusedError(
            phrase(
                'expected a bool, number, string or None for {dotted}, found '
                '{value!r}; pass a plain value',
                dotted=dotted,
                value=value,
            )
        )


def is_rewritable(config: FlatConfig, dotted: str) -> bool:
    """True if a rewrite of a config may set a key and can check its value.

    Args:
        config: As loaded.
        dotted: A key; one of a hook that is not ours is none of them.
    """
    if not _KEY.fullmatch(dotted):
        return False
    path = tuple(dotted.split('.'))
    kind = config.get((*path[:2], 'type'))
    return path[0] not in HOOK_ROOTS or kind is None or is_our_hook(kind)


def parse_assignments(assignments: Iterable[str]) -> dict[str, SettingValue]:
    """Parses words ``key=value`` to settings, as ``tools/train.py --cfg-options`` does.

    Args:
        assignments: Such as ``train_dataloader.num_workers=8``.

    Raises:
        RefusedError: If one is no assignment, or a key is given twice.
    """
    found: dict[str, SettingValue] = {}
    for text in assignments:
        key, equal, value = text.partition('=')
        if not equal:
            raise RefusedError(
                phrase(
                    'expected KEY=VALUE, found {text!r}; write '
                    'train_dataloader.num_workers=8',
                    text=text,
                )
            )
        if (key := key.strip()) in found:
            raise RefusedError(
                phrase('expected {key} once, found it twice; drop one', key=key)
            )
        found[key] = _parse_value(value.strip())
    return found


def _parse_value(text: str) -> SettingValue:
    if text.lower() in ('true', 'false'):
        return text.lower() == 'true'
    try:
        value: SettingValue = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        if text.endswith(')'):
            raise RefusedError(
                phrase(
                    'expected a plain value, found {text}; change it by hand', text=text
                )
            ) from None
        return text
    return value


def render_cfg_options(changes: Mapping[str, SettingValue]) -> str | None:
    """Returns changed settings as ``--cfg-options`` words, quoted for a shell."""
    words = [shlex.quote(f'{dotted}={value}') for dotted, value in changes.items()]
    return f'--cfg-options {" ".join(words)}' if words else None


def complete_settings(
    before: FlatConfig, wanted: Mapping[str, SettingValue]
) -> dict[str, SettingValue]:
    """Returns settings, with resets of worker settings that ``num_workers=0`` forbids.

    Args:
        before: The loaded config.
        wanted: What is asked for.

    Raises:
        RefusedError: If PyTorch would refuse the combination.
    """
    complete = dict(wanted)
    for loader in LOADERS:
        _refuse_unbatched(before, wanted, loader)
        key = f'{loader}.num_workers'
        workers = wanted.get(key, before.get((loader, 'num_workers')))
        # what is no dict is refused as such
        if workers or before.get((loader,)) != Container('dict', 0):
            continue
        for name, resting in OF_WORKERS.items():
            dotted = f'{loader}.{name}'
            if wanted.get(dotted):
                raise RefusedError(
                    phrase(
                        'expected num_workers above 0 with {dotted}, found {found}; '
                        'PyTorch refuses that, set {key} too',
                        dotted=dotted,
                        found=workers or 0,
                        key=key,
                    )
                )
            if key in wanted and dotted not in wanted and before.get((loader, name)):
                complete[dotted] = resting
    return complete


def _refuse_unbatched(
    before: FlatConfig, wanted: Mapping[str, SettingValue], loader: str
) -> None:
    """Raises a `RefusedError` if ``batch_size=None`` conflicts with other keys.

    Raises:
        RefusedError: If one of both is asked for and the other is there.
    """

    def read(name: str, otherwise: object = None) -> object:
        return wanted.get(f'{loader}.{name}', before.get((loader, name), otherwise))

    is_asked = any(
        f'{loader}.{name}' in wanted for name in ('batch_size', *_OF_BATCHES)
    )
    # another class of loader has arguments of its own
    if not is_asked or (loader, 'type') in before:
        return
    beside = [name for name in _OF_BATCHES if read(name)]
    if beside and read('batch_size', 1) is None:
        raise RefusedError(
            phrase(
                'expected a whole number for {loader}.batch_size beside '
                '{beside:&}, found None; PyTorch or MMEngine refuses that',
                loader=loader,
                beside=tuple(beside),
            )
        )


def verify_changes(
    config: FlatConfig,
    changes: Mapping[str, SettingValue],
    module: Module | None = None,
) -> None:
    """Raises a `RefusedError` for settings that cannot exist in a loaded config.

    Args:
        config: As loaded.
        changes: By dotted key.
        module: The text of the config, to name the line that is to be changed by hand.

    Raises:
        RefusedError: If a loader, hook or metric is missing, a setting is a
            container, or a key is misspelt: neither its owner nor the config knows it.
    """
    for dotted, value in changes.items():
        path = tuple(dotted.split('.'))
        if path[0] in HOOK_ROOTS:
            _verify_hook(config, path, changes)
        elif path[0] in EVALUATORS:
            _verify_evaluator(config, path[0], value, module)
        else:
            _verify_dict(config, path[0])
        if isinstance(config.get(path), Container):
            raise RefusedError(
                phrase(
                    'expected a single value in {dotted}, found a dict or list; '
                    'change it by hand',
                    dotted=dotted,
                )
            )
        if path not in config:
            _verify_known(config, path)
        elif path[0] in LOADERS and path[-1] in _OBJECTS:
            _refuse_plain(config, path, value)


def _verify_known(held: Collection[KeyPath], path: KeyPath) -> None:
    owner, known = 'GPUEfficiencyHook', OF_OUR_HOOK
    if path[0] not in HOOK_ROOTS:
        owner, known = phrase("PyTorch's DataLoader"), OF_LOADER
        # another class of loader has arguments of its own
        if path[0] not in LOADERS or (path[0], 'type') in held:
            return
    if path[-1] not in known:
        others = phrase('it has {names}', names=tuple(known))
        raise RefusedError(
            phrase(
                'expected an argument of {owner}, found {key}; {hint}',
                owner=owner,
                key='.'.join(path),
                hint=suggest_name(path[-1], known, others),
            )
        )


def suggest_name(name: str, known: Iterable[str], others: Text) -> Text:
    """Phrases a hint at the known name that is most like a mistyped one.

    Args:
        name: As it was typed.
        known: All names that exist.
        others: Hint where none of them resembles it.
    """
    near = difflib.get_close_matches(name, list(known), 1)
    return phrase('did you mean {near}?', near=near[0]) if near else others


def _refuse_plain(config: FlatConfig, path: KeyPath, value: SettingValue) -> None:
    """Raises a `RefusedError` for a plain value where MMEngine builds an object.

    Another class of loader may take it.
    """
    if (path[0], 'type') not in config:
        raise RefusedError(
            phrase(
                'expected a dict for {key}, of which MMEngine builds it, '
                'found {value!r}; change it by hand',
                key='.'.join(path),
                value=value,
            )
        )


def _verify_dict(config: FlatConfig, name: str) -> None:
    is_needed = name in (*LOADERS, *EVALUATORS)
    found = config.get((name,), None if is_needed else Container('dict', 0))
    if found != Container('dict', 0):
        kind = repr(found)
        if (name,) not in config:
            kind = phrase('none in the config or its bases')
        elif isinstance(found, Container):
            kind = phrase('a {kind}', found)
        raise RefusedError(
            phrase(
                'expected {name} to be a dict, found {kind}; name the config '
                'that is trained, or change it by hand',
                name=name,
                kind=kind,
            )
        )


def _verify_evaluator(
    config: FlatConfig, name: str, value: SettingValue, module: Module | None
) -> None:
    found = config.get((name,))
    if isinstance(found, Container) and found.kind != 'dict':
        _refuse_list(config, name, value, module)
    _verify_dict(config, name)
    kind = bare_name(config.get((name, 'type'), 'none'))
    if kind not in _METRICS:
        raise RefusedError(
            phrase(
                'expected CocoMetric in {name}.type, found {kind}; '
                '{fast_metric} stands for CocoMetric alone',
                name=name,
                kind=kind,
                fast_metric=FAST_METRIC,
            )
        )


def _refuse_list(
    config: FlatConfig, name: str, value: SettingValue, module: Module | None
) -> None:
    """Raises a `RefusedError` for a list of evaluators; says how to edit it by hand."""
    indices = [
        int(path[1])
        for path, kind in config.items()
        if len(path) == 3
        and (path[0], path[2]) == (name, 'type')
        and bare_name(kind) in _METRICS
    ]
    if not indices:
        raise RefusedError(
            phrase(
                'expected CocoMetric in {name}, found a list of others; '
                '{fast_metric} stands for CocoMetric alone',
                name=name,
                fast_metric=FAST_METRIC,
            )
        )
    line = None if module is None else _find_line(module, name, indices[0])
    where = phrase('where it is written') if line is None else phrase('in this line')
    raise RefusedError(
        phrase(
            'expected {name} to be a dict, found a list; {where}, make '
            'the type of its entry {entry} {value!r} by hand',
            name=name,
            where=where,
            entry=indices[0],
            value=value,
        ),
        line,
    )


def _find_line(module: Module, name: str, index: int) -> int | None:
    """Finds the line number of a list entry's ``type`` in a config's text."""
    node = locate_setting(module, (name,)).node
    if not isinstance(node, (ast.List, ast.Tuple)) or index >= len(node.elts):
        return None
    entry = node.elts[index]
    types: list[ast.expr] = []
    if isinstance(entry, (ast.Call, ast.Dict)) and is_display(entry):
        types = [part.value for part in parse_entries(entry) if part.key == 'type']
    return (types or [entry])[-1].lineno


def _verify_hook(
    config: FlatConfig, path: KeyPath, changes: Mapping[str, SettingValue]
) -> None:
    # only our hook's own place may be filled, and only where it is free
    is_added = changes.get('.'.join((*_PLACE, 'type'))) == HOOK_TYPE
    if path[:-1] == _PLACE and is_added and _PLACE not in config:
        return
    if not is_our_hook(config.get((*path[:-1], 'type'))):
        places = tuple('.'.join(place) for place in find_hooks(config))
        hint = phrase(
            'give the argument to mmgpu run, or add the hook with mmgpu enable'
        )
        if places:
            hint = phrase('it is at {places}', places=places)
        raise RefusedError(
            phrase(
                'expected GPUEfficiencyHook at {place}, found another or none; {hint}',
                place='.'.join(path[:-1]),
                hint=hint,
            )
        )


def describe_metric(changes: Mapping[str, SettingValue]) -> Iterator[str]:
    """Yields sentences on what a config needs to validate with FastCocoMetric.

    Args:
        changes: By dotted key.

    Yields:
        A sentence; none where the metric stays or is taken back.
    """
    if FAST_METRIC in changes.values():
        yield phrase(
            'The config then needs mmgpu_hooks where it is trained, and FastCocoMetric '
            'a backend: pip install ultrafast-pycocotools (or hotcoco). Without one it '
            'evaluates as CocoMetric does.'
        )


def describe_recipe(
    config: FlatConfig, changes: Mapping[str, SettingValue]
) -> Iterator[str]:
    """Explains how a new batch size affects learning rate and training length.

    The linear scaling rule (Goyal et al. 2017, https://arxiv.org/abs/1706.02677): k
    times the batch, k times the rate.

    Args:
        config: Loaded, before the change.
        changes: By dotted key.

    Yields:
        Sentences; none where the batch size stays.
    """
    new = changes.get('train_dataloader.batch_size')
    if not isinstance(new, int):
        return
    old = config.get(('train_dataloader', 'batch_size'))
    # PyTorch's own default is 1
    times = new / old if isinstance(old, int) and old > 0 else float(new)
    rate = config.get(('optim_wrapper', 'optimizer', 'lr'))
    base = config.get(('auto_scale_lr', 'base_batch_size'))
    if config.get(('auto_scale_lr', 'enable')):
        yield phrase(
            'auto_scale_lr is on: MMEngine multiplies the learning rate by batch size '
            'x ranks / {base_batch_size}.',
            base_batch_size=base,
        )
    elif isinstance(rate, (int, float)):
        yield phrase(
            'The learning rate stays at {learning_rate:g}. By the linear scaling rule '
            'it goes to {scaled_learning_rate:g}, {batch_size_ratio:g} times as high, '
            'and a longer warm-up may be needed.',
            learning_rate=rate,
            scaled_learning_rate=rate * times,
            batch_size_ratio=times,
        )
    yield from _describe_length(config, times)


def _describe_length(config: FlatConfig, times: float) -> Iterator[str]:
    """Explains how a batch ``times`` as large changes the length of a training."""
    iterations = config.get(('train_cfg', 'max_iters'))
    epochs = config.get(('train_cfg', 'max_epochs'))
    if isinstance(iterations, int):
        yield phrase(
            'train_cfg.max_iters stays at {max_iterations:d}: the training sees '
            '{batch_size_ratio:.3g} times as many images. For as many as before it '
            'goes to {scaled_iterations:d}, and so do val_interval, milestones, '
            'warm-up and all else that is counted in iterations.',
            max_iterations=iterations,
            batch_size_ratio=times,
            scaled_iterations=max(round(iterations / times), 1),
        )
    elif isinstance(epochs, int):
        lasting = None
        counted = tuple(_find_iteration_schedulers(config))
        if counted:
            lasting = phrase(
                'What param_scheduler counts in iterations ({schedulers}) lasts '
                '{batch_size_ratio:.3g} times as many epochs.',
                schedulers=counted,
                batch_size_ratio=times,
            )
        seen = phrase(
            'train_cfg.max_epochs stays at {max_epochs:d}: the training sees as many '
            'images, in {iterations_ratio:.3g} times as many iterations.',
            max_epochs=epochs,
            iterations_ratio=1 / times,
        )
        yield sentences(seen, lasting)


def _find_iteration_schedulers(config: FlatConfig) -> Iterator[str]:
    """Yields names and end iterations of parameter schedulers that count iterations."""
    for path, by_epoch in config.items():
        is_scheduler = path[:1] == ('param_scheduler',)
        if is_scheduler and path[-1] == 'by_epoch' and not by_epoch:
            kind = config.get((*path[:-1], 'type'), phrase('one without a type'))
            name = kind if isinstance(kind, str) else getattr(kind, '__name__', '')
            name = name or str(kind)
            end = config.get((*path[:-1], 'end'))
            yield listed((name, f'end={end}')) if isinstance(end, int) else name


def enabling_settings(
    before: FlatConfig, *, is_tuned: bool = False
) -> dict[str, SettingValue]:
    """Returns the settings to change so that a config has GPUEfficiencyHook.

    It goes into ``default_hooks``, which MMEngine merges with the base's; a
    ``custom_hooks`` list would replace the base's list.

    Args:
        before: The config as loaded.
        is_tuned: Whether the hook is to tune the loader, too.

    Raises:
        RefusedError: If its place is taken, or it stands where no argument can be set.
    """
    tuned: dict[str, SettingValue] = {}
    places = find_hooks(before)
    place = places[0] if places else _PLACE
    if is_tuned and before.get((*place, 'tune')) is not True:
        if place[0] != _PLACE[0]:
            raise RefusedError(
                phrase(
                    'expected GPUEfficiencyHook in default_hooks, found it at {place}, '
                    'an element of a list; write tune=True into its dict there',
                    place='.'.join(place),
                )
            )
        tuned['.'.join((*place, 'tune'))] = True
    if places:
        return tuned
    if _PLACE in before:
        found = before.get((*_PLACE, 'type'), before[_PLACE])
        raise RefusedError(
            phrase(
                'expected default_hooks.{hook_key} to be free, found '
                '{found!r} there; rename or remove it',
                hook_key=HOOK_KEY,
                found=found,
            )
        )
    return {f'default_hooks.{HOOK_KEY}.type': HOOK_TYPE, **tuned}
