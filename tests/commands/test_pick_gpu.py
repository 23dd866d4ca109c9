"""Tests ``mmgpu pick-gpu`` by real processes, with pynvml and a fake driver."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.nvml import FakeGpu, FakeNvml
from fakes.picking import PICK, PROGRAM
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


@pytest.fixture
def show_table(environ, capsys):
    """Function that runs ``mmgpu pick-gpu`` without a command, in this process."""

    def show(*arguments: str) -> subprocess.CompletedProcess[str]:
        code = main(['pick-gpu', *arguments])
        return subprocess.CompletedProcess(arguments, code, *capsys.readouterr())

    return show


def test_two_started_together_choose_different_cards(environ, show_table):
    command = [*PICK, '--', *HOLD]
    pipes: dict[str, Any] = {'stdin': subprocess.PIPE, 'stdout': subprocess.PIPE}
    both = [subprocess.Popen(command, env=environ, text=True, **pipes) for _ in '12']
    chosen = {process.stdout.readline().strip() for process in both}
    assert chosen == {'GPU-empty', 'GPU-half'}
    third = show_table()
    assert third.returncode == 1
    assert all(f'in use by process {process.pid}' in third.stderr for process in both)
    # the lock has gone with the command that took its place, however it ends
    both[0].send_signal(signal.SIGKILL)
    for process in both:
        process.stdin.close()
        process.wait()
        process.stdout.close()
    assert show_table().stdout.endswith('\nCUDA_VISIBLE_DEVICES=GPU-empty\n')


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
    pipes: dict[str, Any] = {'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE}
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


def test_a_shell_script_that_may_not_be_executed_is_to_be_named_otherwise(
    environ, tmp_path
):
    (tmp_path / 'plain.sh').write_text('echo\n')
    done = pick(environ, '--', './plain.sh')
    assert (done.returncode, done.stdout) == (2, '')
    assert 'write "bash ./plain.sh ..." in its place' in done.stderr


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
def test_sizes_are_read_in_binary_and_decimal_units(text, size):
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


@contextlib.contextmanager
def holding(environ, **changed: str) -> Iterator[str]:
    """Context in which a process holds one GPU by ``pick-gpu``; yields the GPU."""
    with subprocess.Popen(
        [*PICK, '--', *HOLD],
        env={**environ, **changed},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin and process.stdout
        yield process.stdout.readline().strip()
        process.stdin.close()


LOCKS = Path(f'locks-{os.getuid()}')
"""Folder of GPU lock files in ``/tmp``, as set for these tests."""


def test_another_start_that_was_stopped_holds_nobody_up(environ, show_table):
    LOCKS.mkdir(mode=0o700)
    with (LOCKS / 'picking.lock').open('w') as picking:
        picking.write('4711')
        picking.flush()
        fcntl.flock(picking, fcntl.LOCK_EX)
        table = show_table('--wait', '5')
        assert (table.returncode, table.stderr) == (0, '')
        command = pick(environ, '--', 'printenv', 'CUDA_VISIBLE_DEVICES')
    assert (command.returncode, command.stdout) == (0, 'GPU-empty\n')
    assert 'picking within 0.5 s, found picking.lock in use by process 4711' in (
        command.stderr
    )


def test_what_is_no_regular_file_is_no_lock(environ, show_table):
    LOCKS.mkdir(mode=0o700)
    os.mkfifo(LOCKS / 'picking.lock')
    victim = Path('victim')
    victim.write_text('precious')
    (LOCKS / 'GPU-empty.lock').symlink_to(victim.absolute())
    table = show_table()
    assert table.stdout.endswith('\nCUDA_VISIBLE_DEVICES=GPU-half\n')
    command = pick(environ, '--', 'printenv', 'CUDA_VISIBLE_DEVICES')
    assert (command.returncode, command.stdout) == (0, 'GPU-half\n')
    both = show_table('-n', '2')
    assert both.returncode == 1
    assert f'1 cannot be locked ({LOCKS.absolute()}/GPU-empty.lock: ' in both.stderr
    assert victim.read_text() == 'precious'
    # nor is one that has another name, as an older folder may hold
    (LOCKS / 'GPU-half.lock').unlink()
    os.link(victim, LOCKS / 'GPU-half.lock')
    assert pick(environ, '--', 'true').returncode == 1
    assert victim.read_text() == 'precious'


def is_of_nobody(path: Path) -> None:
    path.mkdir()
    if os.getuid():
        pytest.skip('only root can give a folder to another user')
    os.chown(path, 65534, 65534)


FORBID: dict[str, Callable[[Path], object]] = {
    'folder of another user': is_of_nobody,
    'file': Path.touch,
    'link': lambda path: path.symlink_to('nowhere'),
}


@pytest.mark.parametrize('kind', FORBID)
def test_another_user_cannot_forbid_this_one_to_pick_cards(environ, show_table, kind):
    FORBID[kind](LOCKS)
    assert show_table().returncode == 0
    with holding(environ) as first:
        with holding(environ) as second:
            assert {first, second} == {'GPU-empty', 'GPU-half'}
        # nor can it be taken twice once the folder may be made
        LOCKS.rmdir() if LOCKS.is_dir() else LOCKS.unlink()
        with holding(environ) as second:
            assert {first, second} == {'GPU-empty', 'GPU-half'}


def test_where_no_folder_can_be_made_the_reason_is_said(environ):
    LOCKS.touch()
    refused = pick({**environ, 'XDG_CACHE_HOME': '/proc'}, '--', 'true')
    assert (refused.returncode, refused.stderr.count('\n')) == (2, 1)
    assert f'found none: {LOCKS}: ' in refused.stderr
    assert '/proc/mmgpu: ' in refused.stderr
    assert 'Set XDG_CACHE_HOME' in refused.stderr


def test_shells_with_and_without_a_runtime_directory_agree(environ):
    runtime = Path('runtime').absolute()
    runtime.mkdir(mode=0o700)
    with holding(environ, XDG_RUNTIME_DIR=str(runtime)) as first:
        assert (runtime / 'mmgpu' / f'{first}.lock').is_file()
        with holding(environ) as second:
            assert {first, second} == {'GPU-empty', 'GPU-half'}
    # with one, whatever the others are, it works
    LOCKS.rename('gone')
    LOCKS.touch()
    shut = {'XDG_CACHE_HOME': '/proc', 'XDG_RUNTIME_DIR': str(runtime)}
    with holding(environ, **shut) as first, holding(environ, **shut) as second:
        assert {first, second} == {'GPU-empty', 'GPU-half'}


def test_a_folder_that_others_can_write_is_mended_or_not_used(environ):
    runtime = Path('runtime').absolute()
    for folder in (runtime, LOCKS):
        folder.mkdir()
        folder.chmod(0o777)
    shared = {**environ, 'XDG_RUNTIME_DIR': str(runtime)}
    assert pick(shared, '--', 'true').returncode == 0
    assert LOCKS.stat().st_mode & 0o777 == 0o700
    assert not [*runtime.iterdir()]


@pytest.mark.parametrize('name', ['GPU-empty.lock', 'picking.lock'])
@pytest.mark.parametrize('mode', [0o777, 0o700])
def test_locks_that_another_user_left_in_our_folder_forbid_nothing(environ, name, mode):
    if os.getuid():
        pytest.skip('only root can give a file to another user')
    LOCKS.mkdir()
    (LOCKS / name).touch(0o644)
    os.chown(LOCKS / name, 65534, 65534)
    LOCKS.chmod(mode)
    table = pick(environ)
    assert table.stdout.endswith('\nCUDA_VISIBLE_DEVICES=GPU-empty\n')
    with holding(environ) as first, holding(environ) as second:
        assert [first, second] == ['GPU-empty', 'GPU-half']
        assert 'in use by process' in pick(environ).stderr
    # where no folder is left, it is named
    alone = pick({**environ, 'XDG_CACHE_HOME': '/proc'}, '--', 'true')
    assert alone.returncode == 2
    assert f'{LOCKS}: {name} in it is not ours; ' in alone.stderr


NO_LOCKS = """
import errno, fcntl, os
flock = fcntl.flock
def refuse(descriptor, operation):
    if '/cache/mmgpu/' in os.readlink(f'/proc/self/fd/{descriptor}'):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
    flock(descriptor, operation)
fcntl.flock = refuse
"""
"""Python code that makes file locks fail in the cache folder, as on some NFS."""


def test_a_home_without_locks_is_left_out_where_another_folder_has_them(environ):
    Path('cache/mmgpu').mkdir(parents=True)
    pick_there = [sys.executable, '-c', NO_LOCKS + PROGRAM]
    command = [*pick_there, '--', 'printenv', 'CUDA_VISIBLE_DEVICES']
    for words, name in ((command, ''), (pick_there, 'CUDA_VISIBLE_DEVICES=')):
        done = subprocess.run(words, env=environ, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert 'lock' not in done.stderr
        assert done.stdout.splitlines()[-1] == f'{name}GPU-empty'
    # alone it does not do, and the reason is said
    LOCKS.rename('gone')
    LOCKS.touch()
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert done.returncode == 1
    assert 'mmgpu/GPU-empty.lock: No locks available)' in done.stderr


@pytest.mark.parametrize('visible', ['0,0', '²', '\u0661', '9' * 5000])
def test_visible_devices_that_cuda_cannot_read_are_none(
    show_table, monkeypatch, visible
):
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', visible)
    refused = show_table()
    assert refused.returncode == 1
    assert 'found 0 of 4' in refused.stderr and 'Traceback' not in refused.stderr
