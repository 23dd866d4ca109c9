"""Benchmark: rewrites settings of all MMDetection configs; no other text may change.

    python -m benchmarks.rewrite [--quick] [--output]

The checks share no code with the product: MMEngine loads the original and the
result, MMDetection's own ``tools/train.py`` reads the command line, and the bytes
are compared here. About 7 minutes.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import io
import logging
import re
import shlex
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from mmengine.config import Config

from benchmarks.harness import (
    Benchmark,
    Figure,
    at_most,
    exactly,
    find_mmdet,
    quantile,
    say,
)
from mmgpu_hooks.config.rewrite import RewriteOutcome, rewrite_config

MAX_REFUSED_PCT, MAX_SECONDS = 1.0, 0.1
QUICK_STEP = 20
"""Step through the list of configs in a quick run (every n-th config)."""

LOADER = 'train_dataloader'
THREADS = ('env_cfg', 'mp_cfg', 'opencv_num_threads')
KEYS = (
    'num_workers',
    'persistent_workers',
    'prefetch_factor',
    'pin_memory',
    'batch_size',
)
_NAMES = '|'.join([*KEYS, THREADS[-1]])
PAIR = rf"['\"]?\w*(?:{_NAMES})\w*['\"]?\s*[=:]\s*[\w.*+{{}} ]+"
"""Regular expression of an assigned loader or OpenCV setting, or a variable for one.

That no other variable is changed is seen in what the result holds."""
_FORMS = (
    f'{LOADER}=dict()',
    f'{LOADER}.update()',
    f'{LOADER}=dict({LOADER})',
    'env_cfg=dict()',
    "env_cfg.setdefault('mp_cfg'dict()).update()",
)
ADDED = f'(?:{"|".join(map(re.escape, _FORMS))})*'

Flat = Mapping[tuple[str, ...], Any]
"""Type of a config's values by their dotted path."""

ReadOptions = Callable[[list[str]], Any]
"""Argument parser that reads ``--cfg-options`` as a training script does."""


@dataclass
class Tally:
    """Results of rewriting configs: counts, refusals, faults and CPU seconds."""

    files: int = 0
    threads: int = 0
    """Number of configs that set OpenCV's thread count."""
    rewritten: int = 0
    unloaded: dict[str, str] = field(default_factory=dict)
    """Error message of each config that MMEngine cannot load, by path."""
    refused: dict[str, str] = field(default_factory=dict)
    """Reason of each refused rewrite, by the config's path."""
    faults: dict[str, str] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)

    @property
    def in_scope(self) -> int:
        """Number of configs that load and have a loader setting to change."""
        return self.rewritten + len(self.refused) + len(self.faults)


class LoadClock:
    """Meter of the CPU time that MMEngine spends in loading configs."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._depth = 0

    def wrap(self, function: Any) -> Any:
        """Wraps a function so that its CPU time is added; nested calls count once."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            begin, self._depth = time.process_time(), self._depth + 1
            try:
                return function(*args, **kwargs)
            finally:
                self._depth -= 1
                if not self._depth:
                    self.seconds += time.process_time() - begin

        return timed


def load(path: Path) -> Any:
    """Loads a config as MMEngine does, with its output suppressed."""
    with contextlib.redirect_stdout(io.StringIO()):
        return Config.fromfile(path, import_custom_modules=False)


def flatten(value: object, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Returns a config's values by their dotted path."""
    if isinstance(value, dict):
        found: dict[tuple[str, ...], Any] = {path: 'dict'}
        pairs: Iterable[tuple[object, object]] = value.items()
    elif isinstance(value, (list, tuple)):
        found = {path: f'{type(value).__name__} of {len(value)}'}
        pairs = enumerate(value)
    else:
        return {path: value}
    for key, item in pairs:
        found.update(flatten(item, (*path, str(key))))
    return found


def differing(left: Flat, right: Flat) -> list[tuple[str, ...]]:
    """Returns keys with different values in two configs, ignoring memory addresses."""
    missing = object()

    def text(value: object) -> str:
        return re.sub(r'0x[0-9a-f]+', '', repr(value))

    odd = []
    for key in {*left, *right}:
        mine, theirs = left.get(key, missing), right.get(key, missing)
        if type(mine) is not type(theirs) or text(mine) != text(theirs):
            odd.append(key)
    return odd


def is_kept(source: str, result: str) -> bool:
    """True if a rewritten config's text differs in the changed settings alone."""
    before, after = (re.split(r'(?<=\n)', text) for text in (source, result))
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag == 'equal':
            continue
        old, new = (residue(''.join(part)) for part in (before[a:b], after[c:d]))
        # what is added at the end may touch what is changed above it
        added = '' if ''.join(before[b:]).strip() else ADDED
        if not re.fullmatch(re.escape(old) + added, new):
            return False
    return True


def residue(text: str) -> str:
    """Returns a text without the changed settings, their dicts, blanks and commas."""
    return re.sub(r'[\s,]', '', re.sub(PAIR, '', text)).replace('mp_cfg=dict()', '')


def choose_settings(before: Flat) -> dict[str, Any]:
    """Returns new values for the train loader and for OpenCV's thread count."""
    threads = int(before.get(THREADS, 0)) + 1
    own = {'.'.join(THREADS): threads} if THREADS in before else {}
    if (LOADER, 'num_workers') not in before and before.get((LOADER,)) != 'dict':
        return own
    found = {key: before.get((LOADER, key)) for key in KEYS}
    wanted = {
        'num_workers': int(found['num_workers'] or 0) + 3,
        'persistent_workers': not found['persistent_workers'],
        'prefetch_factor': int(found['prefetch_factor'] or 2) + 1,
        'pin_memory': not found['pin_memory'],
        'batch_size': int(found['batch_size'] or 1) + 1,
    }
    return {**{f'{LOADER}.{key}': value for key, value in wanted.items()}, **own}


def is_variable(key: tuple[str, ...], before: Flat, after: Flat, asked: Flat) -> bool:
    """True if a key is a config variable that holds one of the requested settings.

    A setting that has a variable of its own changes that, which is a key of the config
    as well. It had the setting's value, and has the new one.
    """
    return len(key) == 1 and any(
        (before.get(key), after.get(key)) == (before.get(path), value)
        for path, value in asked.items()
    )


def find_fault(
    path: Path,
    before: Flat,
    settings: dict[str, Any],
    outcome: RewriteOutcome,
    read_options: ReadOptions,
) -> str | None:
    """Returns a fault in a rewritten config; ``None`` if it is correct.

    Args:
        path: The original.
        before: What it holds.
        settings: What was asked for.
        outcome: What the rewrite answered.
        read_options: Of the training script that the command line is for.
    """
    if outcome.target is None:
        return f'nothing was written: {outcome.status}'
    try:
        after = flatten(load(outcome.target).to_dict(keep_imported=True))
    except Exception as error:  # noqa: BLE001 - a config is a program
        return f'the result does not load: {type(error).__name__}: {error}'
    asked = {tuple(key.split('.')): value for key, value in settings.items()}
    expected = {**before, **asked}
    odd = [
        key
        for key in differing(expected, after)
        if not is_variable(key, before, after, asked)
    ]
    if odd:
        return f'other keys differ: {odd[:3]}'
    result = outcome.target.read_bytes()
    if not is_kept(path.read_bytes().decode(), result.decode()):
        return 'bytes outside the edit differ'
    again = rewrite_config(outcome.target, settings)
    if (again.status, outcome.target.read_bytes()) != ('unchanged', result):
        return f'a second pass is {again.status}'
    config = load(path)
    options = read_options([str(path), *shlex.split(outcome.cfg_options)])
    config.merge_from_dict(options)
    odd = differing(expected, flatten(config.to_dict(keep_imported=True)))
    return f'--cfg-options differs in {odd[:3]}' if odd else None


def rewrite_all(paths: Sequence[Path], root: Path, read_options: ReadOptions) -> Tally:
    """Rewrites every config that loads and has a loader setting to change."""
    tally, clock = Tally(files=len(paths)), LoadClock()
    timed = staticmethod(clock.wrap(Config.fromfile))
    as_dict = clock.wrap(Config.to_dict)
    for path in paths:
        name = path.relative_to(root).as_posix()
        try:
            before = flatten(load(path).to_dict(keep_imported=True))
        except Exception as error:  # noqa: BLE001 - a config is a program
            reason = f'{type(error).__name__}: {error}'.replace(f'{root}/', '')
            say(f'{name}: MMEngine does not load it: {reason}')
            tally.unloaded[name] = reason
            continue
        if not (settings := choose_settings(before)):
            continue
        tally.threads += '.'.join(THREADS) in settings
        clock.seconds, begin = 0.0, time.process_time()
        with (
            mock.patch.object(Config, 'fromfile', timed),
            mock.patch.object(Config, 'to_dict', as_dict),
        ):
            outcome = rewrite_config(path, settings)
        tally.seconds.append(time.process_time() - begin - clock.seconds)
        if outcome.status == 'refused':
            say(f'{name}: refused: {outcome.reason}')
            reason = str(outcome.reason).removeprefix(f'{path}: ')
            tally.refused[name] = reason.replace(f'{root}/', '')
            continue
        fault = find_fault(path, before, settings, outcome, read_options)
        if fault is None:
            tally.rewritten += 1
        else:
            say(f'{name}: {fault}')
            tally.faults[name] = fault
        if outcome.target is not None:
            outcome.target.unlink()
    return tally


def list_figures(tally: Tally) -> Iterator[Figure]:
    """Returns figures on the rewritten configs: refusals, faults and CPU seconds."""
    count = tally.in_scope
    note = f'of {tally.files} files; the others have neither setting, or do not load'
    yield Figure('configs in scope', count, note=note)
    yield Figure('of them with opencv_num_threads', tally.threads)
    refused_pct = 100 * len(tally.refused) / max(1, count)
    yield at_most('refused', refused_pct, MAX_REFUSED_PCT, '%')
    yield exactly('faults', len(tally.faults), 0)
    seconds, name = tally.seconds, 'CPU per config besides loading'
    yield Figure(f'{name}, median', quantile(seconds, 0.5), 's')
    yield at_most(f'{name}, p95', quantile(seconds, 0.95), MAX_SECONDS, 's')
    yield Figure(f'{name}, largest', max(seconds), 's')


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark: rewrites all configs and prints the table."""
    benchmark = Benchmark('rewrite', __doc__ or '', argv)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter('ignore')
    mim = find_mmdet()
    train = importlib.util.spec_from_file_location('train', mim / 'tools' / 'train.py')
    assert train is not None and train.loader is not None
    script = importlib.util.module_from_spec(train)
    train.loader.exec_module(script)

    def read_options(words: list[str]) -> Any:
        with mock.patch.object(sys, 'argv', ['train.py', *words]):
            return script.parse_args().cfg_options

    with tempfile.TemporaryDirectory(prefix='mmgpu-bench-') as folder:
        root = Path(folder, 'configs')
        shutil.copytree(mim / 'configs', root)
        paths = sorted(root.rglob('*.py'))
        step = QUICK_STEP if benchmark.is_quick else 1
        tally = rewrite_all(paths[::step], root, read_options)
    benchmark.add(*list_figures(tally))
    return benchmark.finish()


if __name__ == '__main__':
    sys.exit(main())
