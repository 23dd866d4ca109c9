"""Rewrites the user's config, or a run's copy of it, as recommended.

The user's file and the copy that MMEngine dumped are both loaded. Where they are equal
(but for what a start sets: ``work_dir``, ``launcher``, resuming) the text is one
``_base_`` line and the changes; else it is the copy, edited. Both are texts that are in
no file until they are proven there.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain, combinations
from pathlib import Path
from typing import NamedTuple

from mmgpu_hooks.config.files import read_source
from mmgpu_hooks.config.loading import (
    FlatConfig,
    LoadError,
    RefusedError,
    SettingValue,
    list_differences,
    read_config,
)
from mmgpu_hooks.config.rewrite import SUFFIX, RewriteOutcome, write_variant
from mmgpu_hooks.config.syntax import Module, is_literal, parse_chain
from mmgpu_hooks.recommend.settings import BY_NAME
from mmgpu_hooks.recommend.validation import VALIDATION_KEY, leave_out
from mmgpu_hooks.schema.judged import Recommendation
from mmgpu_hooks.schema.run_folder import RunFiles
from mmgpu_hooks.schema.text import Text, phrase

NICE_KEY = BY_NAME['worker_nice'].key()

_OF_START = ('work_dir', 'launcher')
"""Top-level config names that a training script may override at each start."""
_OF_RESUMING = ('resume', 'load_from')
"""Top-level config names that ``tools/train.py --resume`` sets."""
_WITH_WEIGHTS = """\
# The run was resumed. This config trains from the start, with the weights that the
# config of the run names in load_from.
"""
_WITHOUT_WEIGHTS = """\
# The run was resumed. This config trains from the start. If the training had begun with
# the weights of another one, name them in load_from.
"""
_WITH_WORK_DIR = """\
# work_dir is the folder of that run: with --work-dir DIR, what is in it stays as it is.
"""


class Applied(NamedTuple):
    """Outcome of rewriting a config as recommended, with the changes made to it."""

    outcome: RewriteOutcome
    recommendation: Recommendation
    """Recommendation without the changes that the config could not take."""
    notes: tuple[Text, ...] = ()
    """Sentences on recommended changes that the config could not take."""


def apply_recommended(
    found: Recommendation,
    rewrite: Callable[[Mapping[str, SettingValue]], RewriteOutcome],
) -> Applied:
    """Rewrites a config as recommended, without changes that it cannot take.

    Args:
        found: What is recommended; at least one change.
        rewrite: Rewrites the config with the settings given to it.
    """
    settings = {change.key: change.new for change in found.changes}
    outcome, notes = rewrite(settings), list[Text]()
    # arguments of the hook, and validation's loader
    optional = [key for key in settings if key.endswith('.optimize')]
    optional = [VALIDATION_KEY, NICE_KEY, *optional]
    for keys in chain.from_iterable(
        combinations(optional, count + 1) for count in range(len(optional))
    ):
        rest = {key: new for key, new in settings.items() if not key.startswith(keys)}
        if outcome.status != 'refused' or rest == settings:
            continue
        # what is right for training is not lost for what this config cannot take
        again = rewrite(rest)
        if again.status != 'refused' and (rest or keys == (NICE_KEY,)):
            why = phrase('This config cannot take its changes.')
            found = leave_out(found, keys, why)
            notes.append(
                phrase(
                    '{keys:&} was left out. {reason}.',
                    keys=tuple(key.rstrip('.') for key in keys),
                    reason=outcome.reason,
                )
            )
            outcome = again
    return Applied(outcome, found, tuple(notes))


def write_beside_run(
    found: Recommendation, config_path: str | None, files: RunFiles
) -> Applied:
    """Writes a recommended config for a run into the folder of that run.

    It trains what the run trained: a child of the user's config where that is what
    the run was started with, else the run's own copy with the changes.

    Args:
        found: What is recommended; at least one change.
        config_path: Of the user's config, absolute.
        files: Of the run.
    """
    copy = files.config_copy
    config = config_path if config_path and os.path.isfile(config_path) else None
    stem = Path(config or 'config').stem.removesuffix(SUFFIX)
    target = files.run_folder / f'{stem}{SUFFIX}.py'
    reason: str | None = None
    if copy is None:
        reason = phrase("expected a copy of the config in the run's folder, found none")
        return Applied(RewriteOutcome('refused', target, reason=reason), found)
    try:
        for text, loaded in _list_texts(config, copy, target):
            rewrite = partial(write_variant, text, loaded, target)
            applied = apply_recommended(found, rewrite)
            if applied.outcome.status != 'refused':
                return applied
        reason = applied.outcome.reason
    except LoadError as error:
        reason = phrase(
            "the run's copy of the config does not load ({error})", error=error
        )
    except (RefusedError, OSError) as error:
        reason = phrase(
            "the run's copy of the config cannot be read ({error})", error=error
        )
    return Applied(RewriteOutcome('refused', target, reason=reason), found)


def _list_texts(
    config: str | None, copy: Path, target: Path
) -> Iterator[tuple[str, FlatConfig]]:
    """Lists configs, as text and loaded values, that train the same as a run did.

    The shortest comes first.

    Raises:
        RefusedError: If the run's copy is no config.
        LoadError: If MMEngine cannot load it.
    """
    whole = read_source(copy).text
    trained = read_config(copy)
    child = None if config is None else _inherit(config, target)
    if child is not None and _trains_the_same(child[1], trained):
        yield child
    own = child[1] if child is not None else _load(config)
    yield _start_anew(whole, trained, own)


def _inherit(config: str, target: Path) -> tuple[str, FlatConfig] | None:
    """Makes a config that inherits a given one; returns text and values or ``None``."""
    text = f'_base_ = {config!r}\n'
    try:
        if _lies_in_run_folder(Path(config)):
            # that run may be deleted: this one inherits what its config did
            text = read_source(Path(config)).text
            if not Module(text).is_bound('_base_'):
                return None
        return text, read_config(target, {target: text.encode()})
    except (RefusedError, LoadError, OSError):
        return None


def _lies_in_run_folder(config: Path) -> bool:
    folder = config.parent
    return folder.name == 'vis_data' or (folder / 'vis_data').is_dir()


def _trains_the_same(loaded: FlatConfig, trained: FlatConfig) -> bool:
    ignored = set(_OF_START)
    if trained.get(('resume',)):
        ignored.update(_OF_RESUMING)
    differing = list_differences(loaded, trained)
    return all(path and path[0] in ignored for path in differing)


def _load(config: str | None) -> FlatConfig | None:
    try:
        return None if config is None else read_config(Path(config))
    except LoadError:
        return None


def _start_anew(
    text: str, trained: FlatConfig, own: FlatConfig | None
) -> tuple[str, FlatConfig]:
    """Returns a run's config copy, changed to train from the start instead of resuming.

    It trains from the start, and not into the folder of the run: tools/train.py names
    one by the config where the config itself names none.

    Args:
        text: The copy.
        trained: The same, as loaded.
        own: The user's config, if it can be loaded.
    """
    wanted: dict[str, SettingValue] = {}
    comment = ''
    if trained.get(('resume',)):
        weights = _find_first_weights(own)
        wanted.update(resume=False, load_from=weights)
        comment = _WITHOUT_WEIGHTS if weights is None else _WITH_WEIGHTS
    if own is None:
        comment += _WITH_WORK_DIR if ('work_dir',) in trained else ''
    elif isinstance(folder := own.get(('work_dir',)), (str, type(None))):
        wanted['work_dir'] = folder
    module, loaded = Module(text), {**trained}
    edits: list[tuple[int, int, str]] = []
    for statement in module.body:
        if not (isinstance(statement, ast.Assign) and is_literal(statement.value)):
            continue
        name, *below = parse_chain(statement.targets[0])
        if below or name not in wanted:
            continue
        value = wanted[name]
        if name == 'work_dir' and value is None:
            start, stop = module.span(statement)
            edits.append((start, stop + len(module.newline), ''))
            del loaded[name,]
        else:
            edits.append((*module.span(statement.value), repr(value)))
            loaded[name,] = value
    # from the end on, so that places before an edit stay where they are
    for start, stop, code in sorted(edits, reverse=True):
        text = text[:start] + code + text[stop:]
    return comment + text, loaded


def _find_first_weights(own: FlatConfig | None) -> str | None:
    """Finds the path of the weights (``load_from``) with which a run first started."""
    weights = own.get(('load_from',)) if own is not None else None
    # a config that resumes names its own checkpoint there
    is_first = isinstance(weights, str) and own is not None and not own.get(('resume',))
    return str(weights) if is_first else None
