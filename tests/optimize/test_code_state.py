"""Tests that any change to the code of a class is noticed, in any process."""

from __future__ import annotations

import functools
import importlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from mmgpu_hooks.optimize import code_state
from mmgpu_hooks.optimize.code_state import (
    is_installed,
    list_imported,
    read_code_state,
)
from mmgpu_hooks.optimize.refusal import RefusalError

HELPERS = """
import functools, re
from types import SimpleNamespace
import planted_deeper

LIMIT = 5
NAMED = re.compile('a+')
OPTIONS = SimpleNamespace(size=3)
UNUSED = 1

def parse(line):
    return planted_deeper.split(line)[:LIMIT]

def unused():
    return UNUSED

class Reader:
    size = 4
    def read(self):
        return self.size

@functools.lru_cache(None)
def cached(line):
    return line + '!'

def twice(function):
    @functools.wraps(function)
    def calling(*args):
        return function(*args), function(*args)
    return calling
"""
DEEPER = """
def split(line):
    return line.split(',')
"""
DATA_SET = """
import json
from functools import partial
import planted_helpers
from planted_helpers import NAMED, OPTIONS, Reader, cached, parse, twice

READER = Reader()
TABLE = {'json': parse, 'xml': lambda line: line[1:]}
HALF = partial(parse, 'x')
KINDS = {'car', 'bus', 'tram', 'van'}
SIZES = [1, 2]

class Base:
    MIN_AREA = 10
    def filter(self, samples):
        return samples[: self.MIN_AREA]

class Owned(json.JSONDecoder, Base):
    METAINFO = {'classes': ('car', 'bus')}
    def load(self, line, much=False, *, only=None):
        if line in {'car', 'bus', 'tram', 'van', 'lorry'}:
            return KINDS
        line = planted_helpers.parse(line)
        return READER.read(), TABLE[line](line), HALF(), NAMED, OPTIONS, SIZES
    @property
    def size(self):
        return Reader().size
    @staticmethod
    def name(line):
        return cached(line)
    @classmethod
    def build(cls):
        return [name for name in cls.METAINFO if name]
    @twice
    def count(self):
        return 1
    def late(self):
        from planted_later import later
        return later()
"""
NAMES = 'planted_deeper', 'planted_helpers', 'planted_data_set'


@pytest.fixture
def planted(tmp_path, monkeypatch) -> Iterator[SimpleNamespace]:
    """Modules of a fake project: a data set, its helpers and the helpers' helpers."""
    for name, text in zip(NAMES, (DEEPER, HELPERS, DATA_SET)):
        (tmp_path / f'{name}.py').write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    modules = [importlib.import_module(name) for name in NAMES]
    yield SimpleNamespace(
        deeper=modules[0], helpers=modules[1], data_set=modules[2], folder=tmp_path
    )
    for name in (*NAMES, 'planted_later', 'planted_much'):
        sys.modules.pop(name, None)


def read_digest(planted: Any) -> str:
    return read_code_state(planted.data_set.Owned).digest


def define(text: str, module: ModuleType) -> Any:
    """Returns a function defined by a text in a module, like an edited one."""
    found: dict[str, Any] = {}
    # without the `from __future__` of this file
    code = compile(text, 'planted', 'exec', dont_inherit=True)
    exec(code, vars(module), found)
    (made,) = found.values()
    return made


def set_of(path: str, value: Any) -> Callable[[Any, Any], None]:
    def change(planted: Any, monkeypatch: Any) -> None:
        owner: Any = planted
        *names, last = path.split('.')
        for name in names:
            owner = getattr(owner, name)
        monkeypatch.setattr(owner, last, value)

    return change


def redefine(path: str, text: str) -> Callable[[Any, Any], None]:
    def change(planted: Any, monkeypatch: Any) -> None:
        module = getattr(planted, path.partition('.')[0])
        set_of(path, define(text, module))(planted, monkeypatch)

    return change


def change_reader(planted: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(planted.data_set.READER, 'size', 7, raising=False)


def change_table(planted: Any, monkeypatch: Any) -> None:
    text = 'def own(line): return line[2:]'
    monkeypatch.setitem(planted.data_set.TABLE, 'xml', define(text, planted.data_set))


def change_closure(planted: Any, monkeypatch: Any) -> None:
    text = 'def count(self): return 2'
    count = planted.helpers.twice(define(text, planted.data_set))
    monkeypatch.setattr(planted.data_set.Owned, 'count', count)


CHANGES: dict[str, Callable[[Any, Any], None]] = {
    'a method': redefine(
        'data_set.Owned.filter', 'def filter(self, samples): return samples'
    ),
    'a constant in a method': redefine(
        'data_set.Base.filter', 'def filter(self, samples): return samples[:3]'
    ),
    'a default': redefine(
        'data_set.Owned.load',
        'def load(self, line, much=True, *, only=None): return line',
    ),
    'a class attribute': set_of('data_set.Owned.MIN_AREA', 11),
    'that of a base': set_of('data_set.Base.MIN_AREA', 11),
    'METAINFO': set_of('data_set.Owned.METAINFO', {'classes': ('bus', 'car')}),
    'a method of an installed base': set_of('data_set.Owned.decode', len),
    'a property': redefine('data_set.Owned.size', 'def size(self): return 3'),
    'what a module of one file has': redefine(
        'helpers.parse', 'def parse(line): return line'
    ),
    'a function that was imported': redefine(
        'data_set.cached', 'def cached(line): return line'
    ),
    'a helper of a helper': redefine(
        'deeper.split', "def split(line): return line.split(';')"
    ),
    'a value of a helper': set_of('helpers.LIMIT', 6),
    'a pattern': set_of('data_set.NAMED', re.compile('b+')),
    'a list': set_of('data_set.SIZES', [2, 1]),
    'a set': set_of('data_set.KINDS', {'car'}),
    'a table of functions': change_table,
    'a function with some arguments given': set_of(
        'data_set.HALF', functools.partial(len, 'x')
    ),
    'a class that is used': set_of('helpers.Reader.size', 5),
    'an object': change_reader,
    'a record': set_of('helpers.OPTIONS.size', 4),
    'a decorated function': change_closure,
}


@pytest.mark.parametrize('case', CHANGES)
def test_a_change_of_what_is_used_is_seen(planted, monkeypatch, case):
    before = read_digest(planted)
    with monkeypatch.context() as changed:
        CHANGES[case](planted, changed)
        assert read_digest(planted) != before
    assert read_digest(planted) == before


def replace_by_equal(planted: Any, monkeypatch: Any) -> None:
    text = "def split(line):\n    return line.split(',')"
    monkeypatch.setattr(planted.deeper, 'split', define(text, planted.deeper))


SAME: dict[str, Callable[[Any, Any], None]] = {
    'nothing': lambda planted, monkeypatch: None,
    'an equal function': replace_by_equal,
    'what is not used': redefine('helpers.unused', 'def unused(): return 3'),
    'a value that is not used': set_of('helpers.UNUSED', 2),
    'another set of the same': set_of('data_set.KINDS', {'van', 'tram', 'bus', 'car'}),
}


@pytest.mark.parametrize('case', SAME)
def test_a_change_without_effect_leaves_the_digest_of_code(planted, monkeypatch, case):
    before = read_digest(planted)
    # code that has run is specialised by the interpreter
    for _ in range(50):
        planted.data_set.Owned().load('car')
    SAME[case](planted, monkeypatch)
    assert read_digest(planted) == before


def test_files_of_the_project_are_named_and_installed_ones_are_not(planted):
    state = read_code_state(planted.data_set.Owned)
    assert state.files == tuple(
        sorted(str(planted.folder / f'{name}.py') for name in NAMES)
    )


READ = """
import json, sys
sys.path.insert(0, sys.argv[1])
import planted_data_set
from mmgpu_hooks.optimize.code_state import read_code_state
state = read_code_state(planted_data_set.Owned)
print(json.dumps([state.digest, state.files, sorted(state.names)]))
"""


def test_it_is_the_same_in_each_process(planted):
    answers = []
    for seed in ('1', '2'):
        done = subprocess.run(
            [sys.executable, '-c', READ, str(planted.folder)],
            env={**os.environ, 'PYTHONHASHSEED': seed},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        answers.append(json.loads(done.stdout))
    assert answers[0] == answers[1]
    assert answers[0][0] == read_digest(planted)


@pytest.mark.parametrize('is_there', [False, True], ids=['first', 'imported before'])
def test_a_module_that_a_method_imports_is_listed_once_it_ran(planted, is_there):
    later = planted.folder / 'planted_later.py'
    later.write_text('def later():\n    return 1\n')
    if is_there:
        importlib.import_module('planted_later')
    state, before = read_code_state(planted.data_set.Owned), set(sys.modules)
    assert not is_there or str(later) in list_imported(state.names, before)
    planted.data_set.Owned().late()
    assert str(later) in set(list_imported(state.names, before))


def test_what_is_installed_is_not_followed():
    for name in ('json', 'numpy', 'mmengine', 'mmgpu_hooks', 'sys', 'torch.nn'):
        importlib.import_module(name)
        assert is_installed(name), name
    assert not is_installed(__name__)
    assert not is_installed('there_is_none')


def test_a_cycle_and_a_long_chain_come_to_an_end(planted, monkeypatch):
    functions = '\n'.join(
        f'def f{number}(): return f{number + 1}()' for number in range(3000)
    )
    (planted.folder / 'planted_much.py').write_text(
        f'{functions}\ndef f3000(): return f0()\nclass Owned:\n    run = f0\n'
    )
    much = importlib.import_module('planted_much')
    before = read_code_state(much.Owned).digest
    monkeypatch.setattr(much, 'f2999', len)
    assert read_code_state(much.Owned).digest != before
    monkeypatch.setattr(code_state, '_MOST_OBJECTS', 1000)
    with pytest.raises(RefusalError, match='too much to follow'):
        read_code_state(much.Owned)


LARGE: dict[str, Any] = {
    'a list': [0] * 600_000,
    'a tree': {number: list(range(100)) for number in range(6_000)},
    'a text': 'x' * 60_000_000,
}


@pytest.mark.parametrize('case', LARGE)
def test_a_large_value_is_refused_and_not_read(planted, monkeypatch, case):
    monkeypatch.setattr(planted.data_set, 'SIZES', LARGE[case])
    begun_s = time.process_time()
    with pytest.raises(RefusalError, match='too much to follow'):
        read_code_state(planted.data_set.Owned)
    assert time.process_time() - begun_s < 0.5


def test_a_list_in_itself_comes_to_an_end(planted):
    planted.data_set.SIZES.append(planted.data_set.SIZES)
    with pytest.raises(RefusalError, match='too much to follow'):
        read_code_state(planted.data_set.Owned)


def test_reading_the_code_state_of_lvis_takes_under_200_ms():
    from mmdet.datasets import LVISV1Dataset

    begun_s = time.process_time()
    read_code_state(LVISV1Dataset)
    # 6 ms, where parsing LVIS takes a minute
    assert time.process_time() - begun_s < 0.2
