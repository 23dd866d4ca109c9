from __future__ import annotations

import argparse
import os
import platform
import re
import socket
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

import pytest

from benchmarks import harness, machine
from benchmarks.harness import (
    Benchmark,
    Figure,
    judge,
    render_figures,
    render_table,
    render_value,
    write_atomically,
)
from benchmarks.machine import StrangerLoad, describe_machine, read_tree_cpu_s
from fakes.clock import HandClock

MET = Figure('cost', 12.5, 'us', '<= 20', True, 'median')
MISSED = Figure('growth', 3.0, 'KiB', '<= 0', False)
SHOWN = Figure('peer', 80.0, 'us')


class Host:
    """CPU seconds turned by hand, on a machine of 4 CPUs."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.busy_s = 1000.0
        self.own_s = 50.0
        self.load = StrangerLoad(
            lambda: self.busy_s, lambda: self.own_s, self.clock, cpus=4
        )

    def turn(self, seconds: float, *, strangers_s: float, own_s: float = 0.0) -> None:
        self.clock.turn(seconds)
        self.own_s += own_s
        self.busy_s += own_s + strangers_s


@pytest.fixture
def host() -> Host:
    return Host()


def benchmark(host: Host, *argv: str) -> Benchmark:
    return Benchmark('toy', 'Is it cheap? Yes.\n\nDetails.', argv, load=host.load)


@pytest.mark.parametrize(
    ('figures', 'strangers_pct', 'code'),
    [
        ([MET], 0.0, 0),
        ([MET, SHOWN], 4.0, 0),
        ([MET, MISSED], 0.0, 1),
        ([MET], 4.1, 3),
        ([MET, MISSED], 50.0, 3),
        ([Figure('cost', None, 'us', '<= 20', True)], 0.0, 1),
        ([Figure('cost', 1.0, 'us', '<= 20')], 0.0, 1),
        ([SHOWN], 0.0, 1),
        ([], 0.0, 1),
    ],
)
def test_exit_codes(figures, strangers_pct, code):
    assert judge(figures, strangers_pct) == code


def test_a_run_ends_with_one_line_that_says_it_all(host: Host, capsys):
    run = benchmark(host)
    for figure in (MET, MISSED, SHOWN):
        run.add(figure)
    host.turn(10.0, strangers_s=0.8, own_s=20.0)
    assert run.finish() == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == '# Is it cheap? Yes.'
    assert lines[-1] == 'toy: 1 of 2 targets met; missed: growth'
    assert '| cost   | 12.5  | us   | <= 20  | met     | median |' in lines
    assert '- used by strangers meanwhile: 2.0 % of the machine (limit 4 %)' in lines


def test_a_busy_machine_is_not_judged(host: Host, capsys):
    run = benchmark(host)
    run.add(MET)
    host.turn(10.0, strangers_s=4.0)
    assert run.finish() == 3
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == (
        'toy: 1 of 1 targets met; not judged: strangers used 10.0 % of the machine'
    )


@pytest.mark.parametrize('figure', [MET, MISSED])
def test_the_page_is_what_was_printed_also_when_missed(
    host: Host, tmp_path: Path, capsys, figure: Figure
):
    path = tmp_path / 'results' / 'toy.md'
    run = benchmark(host, '--output', str(path))
    run.add(figure)
    host.turn(1.0, strangers_s=0.0)
    run.finish()
    assert path.read_text() == capsys.readouterr().out
    assert os.listdir(path.parent) == ['toy.md']
    assert path.stat().st_mode & 0o777 == 0o644


def test_output_has_a_default_and_is_off_without_the_option(host: Host):
    assert benchmark(host).options.output is None
    output = benchmark(host, '--output').options.output
    assert output == harness.RESULTS / 'toy.md'
    assert output.parent.parent == Path(harness.__file__).parent


def test_options_of_a_benchmark(host: Host):
    parser = argparse.ArgumentParser()
    parser.add_argument('--rounds', type=int, default=3)
    run = Benchmark('toy', 'Title.', ['--rounds', '5'], parser=parser, load=host.load)
    assert run.options.rounds == 5


def test_a_page_that_cannot_be_finished_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / 'toy.md'
    path.write_text('old')

    def refuse(source: str, target: Path) -> None:
        raise OSError('full')

    monkeypatch.setattr(os, 'replace', refuse)
    with pytest.raises(OSError, match='full'):
        write_atomically(path, 'new')
    assert path.read_text() == 'old'
    assert os.listdir(tmp_path) == ['toy.md']


@pytest.mark.parametrize(
    ('value', 'text'),
    [
        (None, 'unknown'),
        (0.0, '0'),
        (0.012345, '0.01235'),
        (3.14159, '3.142'),
        (20.0, '20'),
        (1234.56, '1,235'),
        (1_000_000.0, '1,000,000'),
        (-2.5, '-2.5'),
        (float('nan'), 'nan'),
        (float('inf'), 'inf'),
    ],
)
def test_values_have_four_digits(value: float | None, text: str):
    assert render_value(value) == text


def test_columns_line_up_and_bars_are_escaped():
    table = render_table(['a', 'long name'], [['x | y', '1'], ['z', '22']])
    assert table.splitlines() == [
        '| a      | long name |',
        '| ------ | --------- |',
        '| x \\| y | 1         |',
        '| z      | 22        |',
    ]


def test_columns_without_content_are_left_out():
    assert render_figures([SHOWN]).splitlines()[0] == '| figure | value | unit |'
    assert render_figures([]).splitlines()[0] == '| figure | value |'


def test_strangers_are_what_is_busy_and_not_ours(host: Host):
    assert host.load.read_pct() == 0.0
    host.turn(10.0, strangers_s=1.0, own_s=30.0)
    assert host.load.read_pct() == pytest.approx(2.5)
    # ticks of the kernel may count more for us than for everybody
    host.busy_s -= 5.0
    assert host.load.read_pct() == 0.0


def test_idle_time_is_not_busy_and_guests_count_once(monkeypatch: pytest.MonkeyPatch):
    kinds = dict(user=5.0, system=2.0, idle=90.0, iowait=7.0, steal=1.0, guest=3.0)
    times = namedtuple('times', kinds)(**kinds)
    monkeypatch.setattr(machine, 'read_system_cpu_times', lambda: times)
    assert machine.read_busy_cpu_s() == 8.0


BURN = (
    'import time\nend = time.process_time() + 0.5\nwhile time.process_time() < end: 0'
)


def test_descendants_are_ours_while_they_live_and_afterwards():
    before_s = read_tree_cpu_s()
    code = f'import subprocess, sys\nsubprocess.run([sys.executable, "-c", {BURN!r}])'
    child = subprocess.Popen(
        [sys.executable, '-c', f'{code}\nprint(1, flush=True)\nsys.stdin.read()'],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None and child.stdout.readline() == b'1\n'
    alive_s = read_tree_cpu_s() - before_s
    child.communicate()
    ended_s = read_tree_cpu_s() - before_s
    assert 0.45 < alive_s < 5.0
    assert ended_s >= alive_s - 0.05


@pytest.mark.timing
def test_the_same_work_is_ours_or_a_strangers():
    ours, theirs = StrangerLoad(), StrangerLoad(own_s=lambda: 0.0)
    began_s, end = time.perf_counter(), time.process_time() + 0.5
    while time.process_time() < end:
        pass
    seconds = time.perf_counter() - began_s
    expected_pct = 100.0 * 0.5 / (seconds * (os.cpu_count() or 1))
    # two ticks of 10 ms on a CPU that did half a second
    tolerance_pct = expected_pct * 0.04 + 1.0
    found_pct = theirs.read_pct() - ours.read_pct()
    assert found_pct == pytest.approx(expected_pct, abs=tolerance_pct)


def test_the_machine_is_described_without_names_and_paths():
    facts = describe_machine()
    assert list(facts)[:4] == ['CPU', 'logical CPUs', 'RAM', 'GPU']
    assert facts['Python'] == platform.python_version()
    assert re.fullmatch(r'\d+\.\d GiB', facts['RAM'])
    words = ' '.join(facts.values()).split()
    assert socket.gethostname() not in words
    assert not [word for word in words if word.startswith(('/', '~'))]


def test_a_machine_that_tells_little(tmp_path: Path):
    (tmp_path / 'cpuinfo').write_text('processor : 0\nBogoMIPS : 50.00\n')
    assert describe_machine(tmp_path)['CPU'] == platform.machine()
    (tmp_path / 'cpuinfo').write_text('model name\t: Some CPU @ 3 GHz\n')
    assert describe_machine(tmp_path)['CPU'] == 'Some CPU @ 3 GHz'
