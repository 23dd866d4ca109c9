"""Tests concurrent rewrites of one config: no edit is lost, no file left over.

Processes are forked from one that has imported MMEngine, and start at one moment.
"""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest

from mmgpu_hooks.commands.main import main
from mmgpu_hooks.config import files, lock_holders, locks
from mmgpu_hooks.config.rewrite import (
    Options,
    disable_hook,
    enable_hook,
    rewrite_config,
)

pytest.importorskip('mmengine.config', reason='the proof loads configs with MMEngine')

CONFIG = 'train_dataloader = dict(batch_size=4, num_workers=2)\n'
WORKERS = 'train_dataloader.num_workers'
BATCH = 'train_dataloader.batch_size'
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def config(tmp_path):
    path = tmp_path / 'k.py'
    path.write_text(CONFIG)
    return path


def start_at_once(*jobs):
    """Runs functions in simultaneous processes; returns their exit codes."""
    context = multiprocessing.get_context('fork')
    barrier = context.Barrier(len(jobs))

    def run(job):
        # what one prints is not the test's
        with open(os.devnull, 'w') as sink, contextlib.redirect_stdout(sink):
            barrier.wait()
            code = job()
        os._exit(code)

    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # of other threads, which do nothing here
        started = [context.Process(target=run, args=(job,)) for job in jobs]
        for process in started:
            process.start()
    for process in started:
        process.join(60)
    return [process.exitcode for process in started]


def by_api(path, key, value):
    outcome = rewrite_config(path, {key: value}, in_place=True)
    return {'rewritten': 0, 'unchanged': 0}.get(outcome.status, 2)


def by_command(path, key, value):
    return main(['set', str(path), f'{key}={value}', '--in-place'])


@pytest.mark.parametrize('races', [10, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.parametrize('change', [by_api, by_command])
def test_no_edit_is_lost_in_a_race(config, change, races):
    (config.parent / 'other').symlink_to(config.parent)
    elsewhere = config.parent / 'other' / 'k.py'
    lost = []
    for race in range(races):
        config.write_text(CONFIG)
        codes = start_at_once(
            lambda: change(config, WORKERS, 8), lambda: change(elsewhere, BATCH, 16)
        )
        text = config.read_text()
        if codes != [0, 0] or not ('=8' in text and '=16' in text):
            lost.append((race, codes, text))
    assert not lost
    names = {path.name for path in config.parent.iterdir()}
    assert {name.partition('.bak')[0] for name in names} == {'k.py', 'other'}


def test_the_hook_and_a_setting_written_at_once_are_both_kept(config):
    here = Options(in_place=True)
    for _ in range(5):
        config.write_text(CONFIG)
        codes = start_at_once(
            lambda: enable_hook(config, here).status != 'rewritten',
            lambda: by_api(config, WORKERS, 8),
        )
        assert codes == [0, 0]
        assert 'GPUEfficiencyHook' in config.read_text()
        assert 'num_workers=8' in config.read_text()
        codes = start_at_once(
            lambda: disable_hook(config, here).status != 'rewritten',
            lambda: by_api(config, BATCH, 16),
        )
        assert codes == [0, 0]
        assert config.read_text() == CONFIG.replace('4', '16').replace('2', '8')


@pytest.mark.slow
def test_two_commands_started_at_once_both_write_their_setting(config):
    for _ in range(5):
        config.write_text(CONFIG)
        start = [sys.executable, '-m', 'mmgpu_hooks', 'set', str(config), '--in-place']
        started = [
            subprocess.Popen([*start, word], cwd=ROOT, stdout=subprocess.DEVNULL)
            for word in (f'{WORKERS}=8', f'{BATCH}=16')
        ]
        assert [process.wait(120) for process in started] == [0, 0]
        assert config.read_text() == CONFIG.replace('4', '16').replace('2', '8')


@contextlib.contextmanager
def held(folder):
    """Context in which a folder is locked, as by another program."""
    descriptor = os.open(folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(descriptor)


def test_a_folder_that_is_held_is_waited_for_and_then_refused(
    config, capsys, monkeypatch
):
    monkeypatch.setattr(locks, 'WAIT_S', 0.3)
    link = config.with_name('folder')
    link.symlink_to(config.parent)
    words = ['set', str(link / 'k.py'), f'{WORKERS}=8', '--in-place']
    with held(config.parent):
        start = time.monotonic()
        assert main(words) == 2
        assert time.monotonic() - start >= 0.3
        out, err = capsys.readouterr()
        assert (out, err.count('\n')) == ('', 1)
        assert re.search(
            r'expected the folder .* to be free, found another rewrite in it for '
            rf'0.3 s \(process {os.getpid()} of user .*\); end '
            'that .*, or run again',
            err,
        )
        assert config.read_text() == CONFIG
        # what writes nothing waits for nobody
        assert main([*words, '--dry-run']) == 0
    assert main(words) == 0
    assert config.read_text() == CONFIG.replace('2', '8')


HOLD = """
import fcntl, os, sys, time
descriptor = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(descriptor, fcntl.LOCK_EX)
if {forks} and os.fork():
    os._exit(0)
os.setuid({user})
print(os.getpid(), flush=True)
time.sleep(60)
"""
OWN, NOBODY = os.getuid(), 65534


@contextlib.contextmanager
def held_by(command, *words):
    """Context in which another process locks a folder; yields its process id."""
    with subprocess.Popen(
        [command, *map(str, words)], stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            yield int(process.stdout.readline())
        finally:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize('forks', [False, True])
def test_a_python_of_this_user_that_holds_the_folder_is_named(
    config, capsys, monkeypatch, forks
):
    monkeypatch.setattr(locks, 'WAIT_S', 0.3)
    code = HOLD.format(user=OWN, forks=forks)
    with held_by(sys.executable, '-c', code, config.parent) as holder:
        assert main(['set', str(config), f'{WORKERS}=8', '--in-place']) == 2
    said = capsys.readouterr().err
    assert said.count('\n') == 1
    assert f'for 0.3 s (process {holder} of user ' in said
    assert config.read_text() == CONFIG


def test_a_holder_that_is_nowhere_to_be_seen_may_be_a_rewrite(
    config, capsys, monkeypatch, tmp_path
):
    monkeypatch.setattr(locks, 'WAIT_S', 0.3)
    monkeypatch.setattr(lock_holders, '_PROC', tmp_path / 'no proc')
    with held(config.parent):
        assert main(['set', str(config), f'{WORKERS}=8', '--in-place']) == 2
    assert '(its process is unknown, maybe on another host)' in capsys.readouterr().err
    assert config.read_text() == CONFIG


def holder_of_another_user():
    if OWN:
        pytest.skip('only root can be another user')
    return (sys.executable, '-c', HOLD.format(user=NOBODY, forks=False))


def holder_that_is_no_python():
    if shutil.which('flock') is None:
        pytest.skip('flock(1) is not installed')
    return ('sh', '-c', 'exec flock "$0" -c "echo \\$PPID; exec sleep 60"')


@pytest.mark.parametrize('find', [holder_of_another_user, holder_that_is_no_python])
def test_a_foreign_process_that_holds_the_lock_delays_a_rewrite_only(
    config, capsys, monkeypatch, find
):
    monkeypatch.setattr(locks, 'WAIT_S', 0.3)
    with held_by(*find(), config.parent) as holder:
        start = time.monotonic()
        assert main(['set', str(config), f'{WORKERS}=8', '--in-place']) == 0
        assert time.monotonic() - start >= 0.3
    said = capsys.readouterr().out
    assert re.search(
        rf'could not be locked \(process {holder} of user \w+ \(.+\) held its lock for '
        '0.3 s\\): of two rewrites of one file at once, one may be lost',
        said,
    )
    assert config.read_text() == CONFIG.replace('2', '8')


def test_a_lock_that_a_wrapper_shares_with_us_forbids_nothing(config):
    if shutil.which('flock') is None:
        pytest.skip('flock(1) is not installed')
    code = (
        'import sys\n'
        'from mmgpu_hooks.commands.main import main\n'
        'from mmgpu_hooks.config import locks\n'
        'locks.WAIT_S = 0.3\n'
        'sys.exit(main(sys.argv[1:]))\n'
    )
    words = ['set', str(config), f'{WORKERS}=8', '--in-place']
    wrapped = ['flock', str(config.parent), sys.executable, '-c', code, *words]
    done = subprocess.run(wrapped, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert config.read_text() == CONFIG.replace('2', '8')


def test_a_rewrite_goes_on_as_soon_as_the_folder_is_free(config):
    done = threading.Event()

    def rewrite():
        assert by_api(config, WORKERS, 8) == 0
        done.set()

    with held(config.parent):
        thread = threading.Thread(target=rewrite)
        thread.start()
        assert not done.wait(0.5)
        assert config.read_text() == CONFIG
    thread.join(20)
    assert done.is_set()
    assert config.read_text() == CONFIG.replace('2', '8')


def test_a_file_system_without_locks_is_named_and_written_to(
    config, capsys, monkeypatch
):
    leftover = config.with_name('.k.py-abcdefgh.mmgpu')
    leftover.write_text('of one that may be writing')

    def refuse(descriptor, operation):
        raise OSError(37, 'No locks available')

    monkeypatch.setattr(fcntl, 'flock', refuse)
    assert main(['set', str(config), f'{WORKERS}=8', '--in-place']) == 0
    assert 'could not be locked (No locks available)' in capsys.readouterr().out
    assert config.read_text() == CONFIG.replace('2', '8')
    assert leftover.exists()


def test_a_child_that_the_config_forked_does_not_keep_the_lock(config):
    config.write_text(
        "if not __import__('os').fork():\n    __import__('time').sleep(5)\n"
        "    __import__('os')._exit(0)\n" + CONFIG
    )
    assert by_api(config, WORKERS, 8) == 0
    start = time.monotonic()
    assert by_api(config, BATCH, 16) == 0
    assert time.monotonic() - start < 4


def test_kill_9_in_mid_write_tears_nothing_and_the_next_write_tidies_up(
    config, monkeypatch
):
    real, context = os.fsync, multiprocessing.get_context('fork')

    def die(descriptor):
        os.kill(os.getpid(), signal.SIGKILL)

    for number in range(20):
        # the backup, and the config itself
        deadly = number % 2

        calls = iter([real] * deadly)

        def kill(descriptor, calls=calls):
            next(calls, die)(descriptor)

        before = config.read_text()
        with monkeypatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter('ignore')
            patch.setattr(files.os, 'fsync', kill)
            process = context.Process(
                target=by_api, args=(config, WORKERS, 10 + number)
            )
            process.start()
            process.join(60)
        assert process.exitcode == -signal.SIGKILL
        assert config.read_text() == before
        # that of the one before is gone
        assert len(list(config.parent.glob('.*.mmgpu'))) == 1
    strange = config.with_name('.report.html-abcdefgh.mmgpu')
    strange.write_text('of another program')
    assert by_api(config, WORKERS, 8) == 0
    assert list(config.parent.glob('.*')) == [strange]
    assert config.read_text() == CONFIG.replace('2', '8')
