"""Tests a trial training's process: how it ends, and that no descendant survives."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from typing import Any

import psutil
import pytest

from mmgpu_hooks.experiment import trial
from mmgpu_hooks.experiment.trial import LOG_NAME, RunningTrial, classify_exit
from mmgpu_hooks.experiment.trial_child import classify_error
from mmgpu_hooks.schema.tried import TrialEnd, TrialSpec

# a worker, and one more in a session of its own; none of them ends by SIGTERM
FAMILY = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if not os.fork():
    if not os.fork():
        os.setsid()
        print(os.getpid(), flush=True)
time.sleep(600)
"""


def is_gone(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_all_processes_of_a_held_trial_are_ended() -> None:
    pipes: dict[str, Any] = {'stdin': subprocess.PIPE, 'stdout': subprocess.PIPE}
    with subprocess.Popen(
        [sys.executable, '-S', '-c', FAMILY], start_new_session=True, **pipes
    ) as leader:
        # the last of them has come
        leader.stdout.readline()
        family = psutil.Process(leader.pid).children(recursive=True)
        held = RunningTrial.__new__(RunningTrial)
        held._process = leader
        began_s = time.monotonic()
        try:
            held.hold()
            held.close()
            held.close()
            took_s, gone = time.monotonic() - began_s, [*map(is_gone, family)]
        finally:
            leader.kill()
            for member in family:
                member.kill()
    assert (gone, leader.returncode) == ([True, True], -signal.SIGKILL)
    assert took_s < 4
    assert held.read_cpu_s() == 0


def test_a_trial_hears_no_switch_of_the_shell(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(trial, 'build_command', lambda spec, parent: ['printenv'])
    for name in ('MMGPU_RUN', 'MMGPU_DISABLE', 'MINE'):
        monkeypatch.setenv(name, '1')
    running = RunningTrial(TrialSpec('config.py', str(tmp_path)))
    running._process.wait()
    running.close()
    lines = (tmp_path / LOG_NAME).read_text().splitlines()
    names = {line.split('=')[0] for line in lines}
    assert names & {'MMGPU_RUN', 'MMGPU_DISABLE', 'MINE'} == {'MINE'}


IN_WORKER = """\
Caught {error} in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "fetch.py", line 1, in fetch
    data = dataset[index]
{error}: {message}
"""
KILLED = 'DataLoader worker (pid 4321) is killed by signal: '
BUS = "Bus error. It is possible that dataloader's workers are out of shared memory."


@pytest.mark.parametrize(
    ('kind', 'message', 'status', 'line'),
    [
        ('ValueError', 'no\nmore', 'failed', 'ValueError: no'),
        (
            'MemoryError',
            IN_WORKER.format(error='MemoryError', message='all gone'),
            'out_of_memory',
            'MemoryError: all gone',
        ),
        (
            'OutOfMemoryError',
            'CUDA out of memory. Tried to allocate 2 GiB.',
            'out_of_memory',
            'OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.',
        ),
        *(
            ('RuntimeError', message, 'out_of_memory', f'RuntimeError: {message}')
            for message in (
                'cuDNN error: CUDNN_STATUS_ALLOC_FAILED',
                'GET was unable to find an engine to execute this computation',
                'Unable to find a valid cuDNN algorithm to run convolution',
            )
        ),
        (
            'RuntimeError',
            f'{KILLED}Killed. ',
            'out_of_memory',
            f'RuntimeError: {KILLED}Killed.',
        ),
        ('RuntimeError', KILLED + BUS, 'out_of_memory', f'RuntimeError: {KILLED}{BUS}'),
        ('ValueError', 'x' * 1000, 'failed', f'ValueError: {"x" * 285}...'),
    ],
    ids=[
        'of the user',
        'no memory in a worker',
        'no memory on the card',
        'cuDNN alloc failed',
        'no cuDNN engine',
        'no cuDNN algorithm',
        'a worker killed',
        'a bus error of a worker',
        'a long line',
    ],
)
def test_an_error_is_known_by_its_decisive_line(kind, message, status, line):
    assert classify_error(kind, message) == TrialEnd(status, line)


@pytest.mark.parametrize(
    ('code', 'last_line', 'status', 'line'),
    [
        (1, 'KeyError: 3', 'failed', 'exit code 1: KeyError: 3'),
        (0, '', 'failed', 'ended with exit code 0'),
        (-11, 'nothing of use', 'failed', 'ended by signal 11 (Segm'),
        (-9, '', 'out_of_memory', 'killed by SIGKILL'),
    ],
)
def test_a_death_without_a_report_is_known_by_how_it_ended(
    code, last_line, status, line
):
    end = classify_exit(code, last_line)
    assert end.status == status
    assert line in (end.error or '')
