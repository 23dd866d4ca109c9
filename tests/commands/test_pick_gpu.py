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
from mmgpu_hooks.commands.main import main
from mmgpu_hooks.commands.pick_gpu import LEAST_FREE

ROOT = Path(__file__).resolve().parents[2]
TOOL = [sys.executable, str(ROOT / 'tools' / 'pick_gpu.py')]
ASK = [sys.executable, '-c', 'import os; print(os.environ["CUDA_VISIBLE_DEVICES"])']
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
def environ(fake_nvml: FakeNvml, monkeypatch) -> dict[str, str]:
    for name in ('CUDA_VISIBLE_DEVICES', 'CUDA_DEVICE_ORDER'):
        monkeypatch.delenv(name, raising=False)
    fake_nvml.set(HALF, EMPTY, FULL, SHUT)
    return fake_nvml.environ()


@pytest.fixture
def leases(tmp_path: Path) -> list[str]:
    return ['--leases', str(tmp_path / 'leases')]


def pick(environ, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*TOOL, *arguments]
    return subprocess.run(command, env=environ, capture_output=True, text=True)


def test_two_started_together_choose_different_cards(environ, leases):
    command = [*TOOL, *leases, '--', *HOLD]
    pipes = {'stdin': subprocess.PIPE, 'stdout': subprocess.PIPE}
    both = [subprocess.Popen(command, env=environ, text=True, **pipes) for _ in '12']
    chosen = {process.stdout.readline().strip() for process in both}
    assert chosen == {'GPU-empty', 'GPU-half'}
    third = pick(environ, *leases)
    assert (third.returncode, third.stdout) == (1, '')
    assert all(f'in use by process {one.pid}' in third.stderr for one in both)
    # the lock has gone with the command that took its place, however it ends
    both[0].send_signal(signal.SIGKILL)
    for process in both:
        process.stdin.close()
        process.wait()
        process.stdout.close()
    assert pick(environ, *leases).stdout == 'CUDA_VISIBLE_DEVICES=GPU-empty\n'


@pytest.mark.parametrize(
    ('options', 'code', 'out'),
    [
        (['-n', '2'], 7, 'GPU-empty,GPU-half -n 3 -- --wait\n'),
        (['--min-free', '90%', '--format', 'table'], 7, 'GPU-empty -n 3 -- --wait\n'),
    ],
)
def test_arguments_output_and_exit_code_are_the_commands(
    environ, leases, options, code, out
):
    script = (
        'import os, sys; print(os.environ["CUDA_VISIBLE_DEVICES"], *sys.argv[1:]);'
        'sys.exit(7)'
    )
    command = [sys.executable, '-c', script, '-n', '3', '--', '--wait']
    done = pick(environ, *leases, *options, '--', *command)
    assert (done.returncode, done.stdout) == (code, out)


def test_waiting_ends_when_a_card_is_free(environ, leases, fake_nvml):
    fake_nvml.set(FULL)
    command = [*TOOL, *leases, '--wait', '60']
    pipes = {'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE}
    with subprocess.Popen(command, env=environ, text=True, **pipes) as waiting:
        assert waiting.stderr.readline().startswith('mmgpu pick-gpu: waiting 60 s: ')
        fake_nvml.set(EMPTY)
        assert waiting.stdout.read() == 'CUDA_VISIBLE_DEVICES=GPU-empty\n'
    assert waiting.returncode == 0


@pytest.mark.parametrize(
    ('arguments', 'sentence'),
    [
        (['--', 'no-such-command'], "found no 'no-such-command' on PATH"),
        (['--leases', '/proc/none'], 'expected a folder for lock files'),
    ],
)
def test_bad_input_is_one_sentence(fake_nvml, leases, capsys, arguments, sentence):
    assert main(['pick-gpu', *leases, *arguments]) == 2
    told = capsys.readouterr()
    assert sentence in told.err
    assert (told.out, told.err.count('\n')) == ('', 1)


def test_those_that_only_print_choose_different_cards_too(environ, leases):
    printed = [pick(environ, *leases).stdout for _ in range(3)]
    cards = 'CUDA_VISIBLE_DEVICES=GPU-empty\n', 'CUDA_VISIBLE_DEVICES=GPU-half\n'
    assert printed == [*cards, '']


def test_the_command_takes_our_place_and_ignores_no_signal(environ, leases):
    script = 'grep SigIgn /proc/self/status; kill -TERM $$'
    done = pick(environ, *leases, '-n', '2', '--', 'sh', '-c', script)
    assert done.returncode == -signal.SIGTERM
    assert not int(done.stdout.split()[1], 16) >> (signal.SIGPIPE - 1) & 1
    assert 'picked GPU 1 (NVIDIA Fake 100), GPU 0 (NVIDIA Fake 100)' in done.stderr


@pytest.mark.parametrize(
    ('text', 'least'),
    [
        ('10G', (10 * 2**30, 0.0)),
        ('1.5 gb', (3 * 2**29, 0.0)),
        ('512MiB', (2**29, 0.0)),
        ('50%', (0, 50.0)),
    ],
)
def test_sizes_and_shares(text, least):
    assert LEAST_FREE(text) == least


def test_a_terminal_gets_a_table_and_takes_nothing(environ, leases):
    for _ in range(2):
        ours, theirs = pty.openpty()
        done = subprocess.run(
            [*TOOL, *leases, '-n', '2'],
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
        assert rows[4][:4] == ['3', 'unknown', 'unknown', 'unknown']
        assert rows[-1] == ['CUDA_VISIBLE_DEVICES=GPU-empty,GPU-half']
