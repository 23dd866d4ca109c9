"""What a benchmark prints, keeps and returns, and how it sees other programs."""

from __future__ import annotations

import platform
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.harness import (
    Benchmark,
    Figure,
    OtherLoad,
    at_most,
    describe_machine,
    judge,
    mean_effect,
    read_tree_cpu_s,
    render_figures,
    render_table,
    render_value,
)
from fakes.calm import find_disturbance
from fakes.clock import HandClock

MET = at_most('cost', 12.5, 20, 'us', 'median')
MISSED = at_most('growth', 3.0, 0, 'KiB')
SHOWN = Figure('peer', 80.0, 'us')


def make_load(busy_s: float, own_s: float = 0.0) -> OtherLoad:
    """Ten seconds of two CPUs, which so much of was used, and by us so much."""
    readings = [iter([0.0, value, value]) for value in (busy_s, own_s)]
    clock = HandClock()
    load = OtherLoad(*(one.__next__ for one in readings), clock, cpus=2)
    clock.turn(10.0)
    return load


@pytest.mark.parametrize(
    ('figures', 'other_pct', 'code'),
    [
        ([MET, SHOWN], 4.0, 0),
        ([MET, MISSED], 0.0, 1),
        ([MET], 4.1, 3),
        ([MET, MISSED], 50.0, 3),
        ([at_most('cost', None, 20)], 0.0, 1),
        ([SHOWN], 0.0, 1),
        ([], 0.0, 1),
    ],
)
def test_exit_codes(figures, other_pct, code):
    assert judge(figures, other_pct) == code


@pytest.mark.parametrize(
    ('other_s', 'code', 'ends'),
    [
        (0.4, 1, 'toy: 1 of 2 targets met; missed: growth'),
        (8.0, 3, 'other programs used 40.0 % of the machine'),
    ],
)
def test_a_run_ends_with_one_line_and_is_kept(tmp_path, capsys, other_s, code, ends):
    path = tmp_path / 'results' / 'toy.md'
    words = ['--output', str(path)]
    run = Benchmark('toy', 'Is it? Yes.\n\nMore.', words, load=make_load(other_s))
    run.add(MET, MISSED, SHOWN)
    assert run.finish() == code
    said = capsys.readouterr().out
    assert path.read_text() == said
    lines = said.splitlines()
    assert lines[0] == '# Is it? Yes.'
    assert '| cost   | 12.5  | us   | <= 20  | met     | median |' in lines
    assert lines[-1].endswith(ends)


def test_the_load_of_the_trainings_counts_where_it_is_known():
    run = Benchmark('toy', 'Title.', [], load=make_load(20.0))
    run.add(MET)
    run.shares_pct += [1.0, 3.0]
    assert run.finish() == 0


def test_a_quick_run_is_never_kept(capsys):
    run = Benchmark('toy', 'Title.', ['--quick'], load=make_load(0.0))
    run.finish()
    assert 'quick' in capsys.readouterr().out.splitlines()[0]
    with pytest.raises(SystemExit):
        Benchmark('toy', 'Title.', ['--quick', '--output'])


@pytest.mark.parametrize(
    ('value', 'text'),
    [
        (None, 'unknown'),
        (0.012345, '0.01235'),
        (20.0, '20'),
        (1234.56, '1,235'),
        (1_000_000.0, '1,000,000'),
        (float('nan'), 'nan'),
    ],
)
def test_values_have_four_digits(value: float | None, text: str):
    assert render_value(value) == text


def test_columns_line_up_and_empty_ones_are_left_out():
    table = render_table(['a', 'long name'], [['x | y', '1'], ['z', '22']])
    assert table.splitlines() == [
        '| a      | long name |',
        '| ------ | --------- |',
        '| x \\| y | 1         |',
        '| z      | 22        |',
    ]
    assert render_figures([SHOWN]).splitlines()[0] == '| figure | value | unit |'


def test_other_load_is_what_is_busy_and_not_ours():
    assert make_load(16.0, 15.0).read_pct() == pytest.approx(5.0)
    # ticks of the kernel may count more for us than for everybody
    assert make_load(15.0, 16.0).read_pct() == 0.0


def test_other_load_disturbs_a_test_that_measures_times():
    assert '50 % of the machine' in (find_disturbance(make_load(10.0)) or '')
    assert 'of the machine' not in (find_disturbance(make_load(0.0)) or '')


def test_descendants_are_ours_while_they_live_and_afterwards():
    before_s = read_tree_cpu_s()
    burn = 'import time\nwhile time.process_time() < 0.5: 0\n'
    child = subprocess.Popen(
        [sys.executable, '-c', f'{burn}print(1, flush=True)\ninput()'],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None and child.stdout.readline() == b'1\n'
    alive_s = read_tree_cpu_s() - before_s
    child.communicate(b'\n')
    assert 0.45 < alive_s < 5.0
    assert read_tree_cpu_s() - before_s >= alive_s - 0.05


def test_the_machine_is_described_without_names_and_paths(tmp_path: Path):
    facts = describe_machine()
    assert re.fullmatch(r'\d+\.\d GiB', facts['RAM'])
    words = ' '.join(facts.values()).split()
    assert socket.gethostname() not in words
    assert not [word for word in words if word.startswith(('/', '~'))]
    (tmp_path / 'cpuinfo').write_text('processor : 0\n')
    assert describe_machine(tmp_path)['CPU'] == platform.machine()


def test_an_interval_of_a_mean_is_students():
    effect = mean_effect([1.0, 2.0, 3.0], confidence=0.95)
    assert effect.value == 2.0
    # t(0.975, 2) = 4.303
    assert effect.half_width == pytest.approx(4.303 / 3**0.5, rel=1e-3)
