"""Fixtures and pytest hooks that all tests share."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import signal
import subprocess
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness import OtherLoad
from fakes.calm import find_disturbance
from fakes.case_ids import name_value
from mmgpu_hooks.commands.main import main
from mmgpu_hooks.show import words

# threads that wait for each other on few cores would be most of a toy's step; before
# anything imports torch, and for what the tests start too
os.environ.setdefault('OMP_NUM_THREADS', '1')

pytest_plugins = ['fakes.cluster', 'fakes.nvml.fixtures', 'fakes.trials']
if importlib.util.find_spec('xdist') is not None:
    pytest_plugins.append('fakes.file_scheduling')

LANGUAGE_VARIABLES = ('LANG', 'LANGUAGE', 'LC_ALL', 'LC_MESSAGES', 'MMGPU_LANG')

_COLLECTED = pytest.StashKey[list[pytest.Item]]()

# a shell that starts us in the background has Ctrl-C ignored, here and in what the
# tests start to send it to
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def ask(capsys):
    """Function that runs a command and returns its JSON answer."""

    def run(*words: str | Path, code: int = 0) -> dict[str, Any]:
        assert main([*map(str, words), '--format', 'json']) == code
        return json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def collected(pytestconfig: pytest.Config) -> list[pytest.Item]:
    """All collected tests, including those that their marks exclude."""
    return pytestconfig.stash[_COLLECTED]


@pytest.fixture(scope='session', autouse=True)
def no_language() -> Iterator[None]:
    """Removes the user's language variables for the whole test session.

    Fixtures of a module start processes, too, before the first test has its own.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name in LANGUAGE_VARIABLES:
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(autouse=True)
def english(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets the language to English before each test."""
    for name in LANGUAGE_VARIABLES:
        # one that is not there is not put back, unless it was set before
        monkeypatch.setenv(name, '')
        monkeypatch.delenv(name)
    monkeypatch.setattr(words, '_wording', None)


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes environment variables that describe the terminal."""
    for name in ('COLUMNS', 'LINES', 'FORCE_COLOR', 'NO_COLOR', 'TTY_COMPATIBLE'):
        monkeypatch.delenv(name, raising=False)


def pytest_make_parametrize_id(val: object) -> str | None:
    """Returns a readable id for an object in a parametrised case."""
    return name_value(val)


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Excludes tests marked ``slow`` unless ``-m`` asks for them."""
    config.stash[_COLLECTED] = [*items]
    if 'slow' not in config.option.markexpr:
        # a keyword is also each folder's name, of the clone itself, too
        items[:] = [item for item in items if not item.get_closest_marker('slow')]


def pytest_collection_finish() -> None:
    """Freezes the garbage collector's view of modules and tests, to save time.

    There are 400,000 such objects, and each worker that a test forks would copy their
    pages to count them.
    """
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Skips a failed ``timing`` test if the machine was disturbed meanwhile.

    Only a test marked ``timing``, only when it failed, and only by what is measured
    then and there.
    """
    if item.get_closest_marker('timing') is None:
        yield
        return
    load = OtherLoad()
    try:
        yield
    except (AssertionError, subprocess.TimeoutExpired, pytest.fail.Exception) as error:
        why = find_disturbance(load)
        if why is None:
            raise
        what = ' '.join(str(error).split())
        pytest.skip(f'too busy a machine to judge times: {why} ({what:.60})')
