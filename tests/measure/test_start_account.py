"""Tests the parts of a training's start by a fake clock, and the process's age."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from fakes.clock import HandClock
from mmgpu_hooks.measure.process_start import read_process_age_s
from mmgpu_hooks.measure.start_account import StartAccount, join_parts


def test_each_second_is_in_one_part():
    clock = HandClock()
    account = StartAccount(clock, 'runner')
    clock.turn(1)
    account.follow('other')
    account.push('train_data')
    clock.turn(10)
    account.push('hooks')
    assert account.part == 'hooks'
    assert account.is_nested
    clock.turn(2)
    assert account.pop('hooks') == 2
    clock.turn(5)
    # what an error left open ends with what is around it
    account.push('workers')
    clock.turn(1)
    assert account.pop('train_data') == 15
    assert not account.is_nested
    assert account.pop('train_data') == 15
    clock.turn(4)
    assert account.read() == {
        'runner': 1,
        'train_data': 15,
        'hooks': 2,
        'workers': 1,
        'other': 4,
    }
    assert sum(account.read().values()) == clock() - account.began_s


def test_a_clock_that_is_set_back_takes_nothing_away():
    clock = HandClock()
    account = StartAccount(clock, 'runner')
    clock.turn(-50)
    assert account.read() == {'runner': 0}


def test_accounts_are_added_up():
    joined = join_parts({'a': 1.0, 'b': 2.0}, {}, {'b': 3.0, 'c': 4.0})
    assert joined == {'a': 1.0, 'b': 5.0, 'c': 4.0}


def test_a_process_knows_its_age():
    code = (
        'import time\n'
        'from mmgpu_hooks.measure.process_start import read_process_age_s\n'
        'print(time.monotonic(), read_process_age_s())\n'
    )
    before_s = time.monotonic()
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    now_s, age_s = map(float, done.stdout.split())
    # the kernel counts in steps of 10 ms
    assert now_s - before_s - 0.1 < age_s < now_s - before_s + 0.02


@pytest.mark.parametrize('text', [None, '', '1 (a) b) S 1'])
def test_an_unknown_age_is_none(tmp_path: Path, text: str | None) -> None:
    (tmp_path / 'self').mkdir()
    if text is not None:
        (tmp_path / 'self' / 'stat').write_text(text)
    assert read_process_age_s(tmp_path) is None
