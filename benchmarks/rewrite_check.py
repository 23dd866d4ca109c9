"""Judges a rewritten config without the code that made it."""

from __future__ import annotations

import ast
import contextlib
import difflib
import importlib.util
import io
import logging
import re
import shlex
import sys
import warnings
from pathlib import Path
from unittest import mock

LOADER = 'train_dataloader'
KEYS = (
    'num_workers',
    'persistent_workers',
    'prefetch_factor',
    'pin_memory',
    'batch_size',
)
PAIR = rf"['\"]?(?:{'|'.join(KEYS)})['\"]?\s*[=:]\s*[\w.*+{{}} ]+"
ADDED = (f'{LOADER}=dict()', f'{LOADER}.update()', f'{LOADER}=dict({LOADER})')


class Checker:
    """Loads configs by MMEngine and command lines by MMDetection's script."""

    def __init__(self) -> None:
        logging.disable(logging.CRITICAL)
        warnings.simplefilter('ignore')
        from mmengine.config import Config

        self.config = Config
        self.script = self._open_train_script()

    def _open_train_script(self):
        mmdet = importlib.util.find_spec('mmdet')
        path = Path(mmdet.origin).parent / '.mim' / 'tools' / 'train.py'
        spec = importlib.util.spec_from_file_location('mmdet_train', path)
        module = importlib.util.module_from_spec(spec)
        with contextlib.redirect_stderr(io.StringIO()):
            spec.loader.exec_module(module)
        return module

    def load(self, path: Path) -> dict | str:
        """The flat config, or why MMEngine does not load it."""
        try:
            config = self._open(path)
        except Exception as error:  # noqa: BLE001 - a config is a program
            return f'{type(error).__name__}: {error}'
        return flatten(config.to_dict(keep_imported=True))

    def _open(self, path: Path):
        with contextlib.redirect_stdout(io.StringIO()):
            return self.config.fromfile(path, import_custom_modules=False)

    def settings(self, before: dict) -> dict:
        """Values that differ from what the config has."""
        found = {key: before.get((LOADER, key)) for key in KEYS}
        workers, batch = found['num_workers'], found['batch_size']
        wanted = {
            'num_workers': int(workers or 0) + 3,
            'persistent_workers': not found['persistent_workers'],
            'prefetch_factor': int(found['prefetch_factor'] or 2) + 1,
            'pin_memory': not found['pin_memory'],
            'batch_size': int(batch or 1) + 1,
        }
        return {f'{LOADER}.{key}': value for key, value in wanted.items()}

    def judge(self, path: Path, before: dict, settings: dict, outcome):
        """Says what is wrong with a rewritten config, and which variable changed."""
        from mmgpu_hooks.config.rewrite import rewrite_config

        after = self.load(outcome.target)
        if isinstance(after, str):
            return f'the result does not load: {after}', None
        expected = dict(before)
        for dotted, value in settings.items():
            expected[tuple(dotted.split('.'))] = value
        odd = [k for k in {*expected, *after} if not same(expected, after, k)]
        variables = [key[0] for key in odd if len(key) == 1 and key[0] in KEYS]
        if len(variables) != len(odd):
            return f'other keys differ: {odd[:3]}', None
        source, result = path.read_bytes(), outcome.target.read_bytes()
        if not is_kept(source.decode(), result.decode()):
            return 'bytes outside the edit differ', None
        again = rewrite_config(outcome.target, settings)
        if (again.status, outcome.target.read_bytes()) != ('unchanged', result):
            return f'a second pass is {again.status}', None
        fault = self._judge_options(path, expected, outcome.cfg_options)
        return fault, ', '.join(variables) or None

    def _judge_options(self, path: Path, expected: dict, line: str) -> str | None:
        argv = ['train.py', str(path), *shlex.split(line)]
        with mock.patch.object(sys, 'argv', argv):
            options = self.script.parse_args().cfg_options
        config = self._open(path)
        config.merge_from_dict(options)
        found = flatten(config.to_dict(keep_imported=True))
        odd = [k for k in {*expected, *found} if not same(expected, found, k)]
        return f'--cfg-options differs in {odd[:3]}' if odd else None


def flatten(value: object, path: tuple = ()) -> dict:
    """Every value by its path."""
    found = {}
    if isinstance(value, dict):
        found[path] = 'dict'
        for key, item in value.items():
            found.update(flatten(item, (*path, str(key))))
    elif isinstance(value, (list, tuple)):
        found[path] = f'{type(value).__name__} of {len(value)}'
        for index, item in enumerate(value):
            found.update(flatten(item, (*path, str(index))))
    else:
        found[path] = value
    return found


def same(left: dict, right: dict, key: tuple) -> bool:
    """Compares one value by type and text, without addresses in memory."""
    if key not in left or key not in right:
        return False
    one, other = left[key], right[key]
    texts = [re.sub(r'0x[0-9a-f]+', '', repr(value)) for value in (one, other)]
    return type(one) is type(other) and texts[0] == texts[1]


def is_kept(source: str, result: str) -> bool:
    """Says whether the lines that differ are equal without the settings."""
    lines = [re.split(r'(?<=\n)', text) for text in (source, result)]
    matcher = difflib.SequenceMatcher(None, *lines, autojunk=False)
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag == 'equal':
            continue
        old, new = (residue(''.join(part)) for part in (lines[0][a:b], lines[1][c:d]))
        appended = a == b == len(lines[0]) or not ''.join(lines[0][a:]).strip()
        if old != new and not (appended and not old and new in ADDED):
            return False
    return True


def residue(text: str) -> str:
    """A text without the settings, blanks and commas."""
    return re.sub(r'[\s,]', '', re.sub(PAIR, '', text))


def describe_spelling(text: str) -> str:
    """Names how a config spells ``num_workers``."""
    spelling = 'only in a base'
    for node in ast.parse(text).body:
        code = ast.unparse(node)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == LOADER:
            spelling = 'own dict without the key'
            value = {
                getattr(item, 'arg', None): item.value
                for item in getattr(node.value, 'keywords', ())
            }.get('num_workers')
            if isinstance(value, ast.Constant):
                spelling = 'own literal'
            elif value is not None:
                spelling = 'through a variable'
        elif code.startswith((f'{LOADER}.', f'{LOADER}[', f'_base_.{LOADER}')):
            spelling = f'{spelling}, dict changed further down'
    return spelling
