"""The command as users run it: real processes, the real pynvml, the fake driver."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fakes.nvml import FakeGpu, FakeNvml
from fakes.picking import PICK
from mmgpu_hooks.commands.main import main
from mmgpu_hooks.commands.options import SIZE

HOLD = [
    sys.executable,
    '-c',
    'import os, sys; print(os.environ["CUDA_VISIBLE_DEVICES"], flush=True);'
    'sys.stdin.read()',
]

EMPTY = FakeGpu(uuid='GPU-empty', memory=(1000, 100), util=(0,))
HALF = FakeGpu(uuid='GPU-half', memory=(1000, 500), util=(0,))
FULL = FakeGpu(uuid='GPU-full', memory=(1000, 950), util=(99,))
SHUT = FakeGpu(uuid='GPU-shut', fail={'uuid': (4, 0)})


@pytest.fixture
def environ(fake_nvml: FakeNvml, tmp_path: Path, monkeypatch) -> dict[str, str]:
    for name in ('CUDA_VISIBLE_DEVICES', 'CUDA_DEVICE_ORDER'):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    fake_nvml.set(HALF, EMPTY, FULL, SHUT)
    return fake_nvml.environ()


def pick(environ, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*PICK, *arguments]
    return subprocess.run(command, env=environ, capture_output=True, text=True)


def test_two_started_together_choose_different_cards(environ):
    command = [*PICK, '--', *HOLD]
    pipes = {'stdin': subprocess.PIPE, 'stdout': subprocess.PIPE}
    both = [subprocess.Popen(command, env=environ, text=True, **pipes) for _ in '12']
    chosen = {process.stdout.readline().strip() for process in both}
    assert chosen == {'GPU-empty', 'GPU-half'}
    third = pick(environ)
    assert third.returncode == 1
    assert all(f'in use by process {one.pid}' in third.stderr for one in both)
    # the lock has gone with the command that took its place, however it ends
    both[0].send_signal(signal.SIGKILL)
    for process in both:
        process.stdin.close()
        process.wait()
        process.stdout.close()
    assert pick(environ).stdout.endswith('\nCUDA_VISIBLE_DEVICES=GPU-empty\n')


@pytest.mark.parametrize(
    ('options', 'cards'),
    [
        (['-n', '2'], 'GPU-empty,GPU-half'),
        (['--min-free', '0.6KB', '--wait', '9'], 'GPU-empty'),
    ],
)
def test_arguments_output_and_exit_code_are_the_commands(environ, options, cards):
    script = (
        'import os, sys; print(os.environ["CUDA_VISIBLE_DEVICES"], *sys.argv[1:]);'
        'sys.exit(7)'
    )
    command = [sys.executable, '-c', script, '-n', '3', '--', '--wait']
    done = pick(environ, *options, '--', *command)
    assert (done.returncode, done.stdout) == (7, f'{cards} -n 3 -- --wait\n')


def test_waiting_ends_when_a_card_is_free(environ, fake_nvml):
    fake_nvml.set(FULL)
    command = [*PICK, '--wait', '60', '--', 'printenv', 'CUDA_VISIBLE_DEVICES']
    pipes = {'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE}
    with subprocess.Popen(command, env=environ, text=True, **pipes) as waiting:
        assert waiting.stderr.readline().startswith('mmgpu pick-gpu: waiting 60 s: ')
        fake_nvml.set(EMPTY)
        assert waiting.stdout.read() == 'GPU-empty\n'
    assert waiting.returncode == 0


def test_a_command_that_is_not_there_is_one_sentence(environ):
    done = pick(environ, '--', 'no-such-command')
    assert done.returncode == 2
    assert "'no-such-command' could not be started: No such file" in done.stderr
    assert 'Traceback' not in done.stderr


def test_a_driver_that_does_not_start_is_one_sentence(fake_nvml, capsys):
    fake_nvml.set(init=9)
    assert main(['pick-gpu']) == 2
    printed = capsys.readouterr()
    assert 'the NVIDIA driver is not loaded' in printed.err
    assert (printed.out, printed.err.count('\n')) == ('', 1)


def test_the_command_takes_our_place_and_ignores_no_signal(environ):
    script = 'grep SigIgn /proc/self/status; kill -TERM $$'
    done = pick(environ, '-n', '2', '--', 'sh', '-c', script)
    assert done.returncode == -signal.SIGTERM
    assert not int(done.stdout.split()[1], 16) >> (signal.SIGPIPE - 1) & 1
    assert 'picked GPU 1 (NVIDIA Fake 100), GPU 0 (NVIDIA Fake 100)' in done.stderr


@pytest.mark.parametrize(
    ('text', 'size'),
    [
        ('10G', 10 * 2**30),
        ('1.5 gib', 3 * 2**29),
        ('512MiB', 2**29),
        ('24GB', 24 * 10**9),
    ],
)
def test_sizes(text, size):
    assert SIZE(text) == size


def test_without_a_command_there_is_a_table_and_nothing_is_taken(environ):
    for _ in range(2):
        ours, theirs = pty.openpty()
        done = subprocess.run(
            [*PICK, '-n', '2'],
            env={**environ, 'NO_COLOR': '1', 'COLUMNS': '100'},
            stdout=theirs,
            stderr=subprocess.PIPE,
            text=True,
        )
        os.close(theirs)
        rows = [line.split() for line in os.read(ours, 10_000).decode().splitlines()]
        os.close(ours)
        assert (done.returncode, done.stderr) == (0, '')
        card = ['NVIDIA', 'Fake', '100']
        assert rows[1][:9] == ['0', *card, '500', 'bytes', '1000', 'bytes', '0']
        assert [row[-1] for row in rows[1:3]] == ['picked', 'picked']
        assert rows[-1] == ['CUDA_VISIBLE_DEVICES=GPU-empty,GPU-half']
