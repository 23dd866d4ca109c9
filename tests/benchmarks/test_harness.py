"""Tests the benchmark harness: output, kept results, exit code, load by others."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from benchmarks import harness
from benchmarks.harness import Benchmark, Figure, OtherLoad, at_most
from fakes.calm import find_disturbance

MET = at_most('cost', 12.5, 20, 'us', 'median')
MISSED = at_most('growth', 3.0, 0, 'KiB')
SHOWN = Figure('peer', 80.0, 'us')


@pytest.fixture
def other_pct(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Sets the load by other programs, in per cent, to the last item of a list."""
    used = [0.0]
    monkeypatch.setattr(OtherLoad, 'read_pct', lambda self: used[-1])
    return used


@pytest.mark.parametrize(
    ('figures', 'used_pct', 'code'),
    [
        ([MET, SHOWN], 4.0, 0),
        ([MET, MISSED], 0.0, 1),
        ([MET], 4.1, 3),
        ([MET, MISSED], 50.0, 3),
        ([at_most('cost', None, 20)], 0.0, 1),
        ([SHOWN], 0.0, 1),
        ([], 0.0, 1),
    ],
    ids=[
        'met',
        'one missed',
        'other load',
        'one missed, other load',
        'not measured',
        'no target',
        'no figure',
    ],
)
def test_the_exit_code_tells_met_from_missed_and_too_busy(figures, used_pct, code):
    assert harness.judge(figures, used_pct) == code


@pytest.mark.parametrize(
    ('figures', 'code'),
    [
        # few cases say little about a median or a share
        ([MET, MISSED], 0),
        ([MISSED], 0),
        # but each case must hold, and be measured
        ([MET, harness.exactly('false alarms', 1, 0)], 1),
        ([MET, at_most('cost', None, 20)], 1),
        ([SHOWN], 1),
    ],
    ids=['one missed', 'all missed', 'a false alarm', 'not measured', 'no target'],
)
def test_a_quick_run_fails_by_what_must_hold_of_each_case(figures, code):
    assert harness.judge(figures, 0.0, is_quick=True) == code


@pytest.mark.parametrize(
    ('used_pct', 'code', 'ends'),
    [
        (2.0, 1, 'toy: 1 of 2 targets met; missed: growth'),
        (40.0, 3, 'other programs used 40.0 % of the machine'),
    ],
)
def test_a_run_ends_with_one_line_and_is_kept(
    other_pct, tmp_path, capsys, used_pct, code, ends
):
    path = tmp_path / 'results' / 'toy.md'
    other_pct.append(used_pct)
    run = Benchmark('toy', 'Is it? Yes.\n\nMore.', ['--output', str(path)])
    run.add(MET, MISSED, SHOWN)
    assert run.finish() == code
    said = capsys.readouterr().out
    assert path.read_text() == said
    lines = said.splitlines()
    assert lines[0] == '# Is it? Yes.'
    assert '| cost   | 12.5  | us   | <= 20  | met     | median |' in lines
    assert lines[-1].endswith(ends)
    # no names and no paths
    words = said.split()
    assert socket.gethostname() not in words
    assert not [word for word in words if word.startswith(('/', '~'))]


def test_the_load_of_the_trainings_counts_where_it_is_known(other_pct):
    other_pct.append(90.0)
    run = Benchmark('toy', 'Title.', [])
    run.add(MET)
    run.shares_pct += [1.0, 3.0]
    assert run.finish() == 0


def test_a_quick_run_is_never_kept(capsys):
    Benchmark('toy', 'Title.', ['--quick']).finish()
    assert 'quick' in capsys.readouterr().out.splitlines()[0]
    with pytest.raises(SystemExit):
        Benchmark('toy', 'Title.', ['--quick', '--output'])


@pytest.mark.parametrize(
    ('value', 'text'),
    [
        (None, 'unknown'),
        (0.012345, '0.01235'),
        (1234.56, '1,235'),
        (1_000_000.0, '1,000,000'),
        (float('nan'), 'nan'),
    ],
)
def test_values_have_four_digits(value: float | None, text: str):
    assert harness.render_value(value) == text


def test_other_load_disturbs_a_test_that_measures_times(other_pct):
    other_pct.append(50.0)
    assert '50 % of the machine' in (find_disturbance(OtherLoad()) or '')
    other_pct.append(0.0)
    assert 'of the machine' not in (find_disturbance(OtherLoad()) or '')


BURN = 'import time\nwhile time.process_time() < 0.5: 0\n'
ORPHAN = f"""
import os, signal
if os.fork():
    os.wait() if {{0}} else signal.pause()
else:
    exec({BURN!r})
    {{0}} or os.kill(os.getppid(), signal.SIGKILL)
"""


@pytest.mark.parametrize('is_waited_for', [True, False])
def test_descendants_are_ours_while_they_live_and_afterwards(is_waited_for: bool):
    Benchmark('toy', 'Title.', [])
    before_s = harness.read_tree_cpu_s()
    # in the second case the parent is killed, as a trial is
    code = ORPHAN.format(is_waited_for)
    subprocess.run([sys.executable, '-c', code], check=is_waited_for)
    assert 0.45 < harness.read_tree_cpu_s() - before_s < 5.0
