from __future__ import annotations

import pytest

from mmgpu_hooks.experiment.trial_events import classify_error, classify_exit

IN_WORKER = """\
Caught {error} in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "fetch.py", line 1, in fetch
    data = dataset[index]
{error}: {message}
"""
KILLED = (
    'DataLoader worker (pid(s) 12, 13) exited unexpectedly',
    'DataLoader worker (pid 4321) is killed by signal: Killed. ',
    'DataLoader worker (pid 4321) is killed by signal: Bus error. It is possible '
    "that dataloader's workers are out of shared memory.",
    'DataLoader worker (pid 4321) is killed by signal: Segmentation fault. ',
)


@pytest.mark.parametrize(
    ('kind', 'message', 'status', 'line'),
    [
        ('ValueError', 'no\nmore', 'failed', 'ValueError: no'),
        ('AssertionError', '', 'failed', 'AssertionError'),
        ('KeyError', "'a'", 'failed', "KeyError: 'a'"),
        (
            'KeyError',
            IN_WORKER.format(error='KeyError', message="'b'"),
            'failed',
            "KeyError: 'b'",
        ),
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
        (
            'OSError',
            '[Errno 12] Cannot allocate memory',
            'out_of_memory',
            'OSError: [Errno 12] Cannot allocate memory',
        ),
        ('RuntimeError', KILLED[0], 'failed', f'RuntimeError: {KILLED[0]}'),
        (
            'RuntimeError',
            KILLED[1],
            'out_of_memory',
            f'RuntimeError: {KILLED[1].strip()}',
        ),
        ('RuntimeError', KILLED[2], 'out_of_memory', f'RuntimeError: {KILLED[2]}'),
        ('RuntimeError', KILLED[3], 'failed', f'RuntimeError: {KILLED[3].strip()}'),
        ('KeyboardInterrupt', '', 'interrupted', 'KeyboardInterrupt'),
        ('SystemExit', '3', 'interrupted', 'SystemExit: 3'),
    ],
)
def test_an_error_is_told_by_its_decisive_line(kind, message, status, line):
    assert classify_error(kind, message) == (status, line)


def test_a_line_without_end_is_cut():
    status, line = classify_error('ValueError', 'x' * 1000)
    assert (status, len(line)) == ('failed', 300)
    assert line.endswith('...')


@pytest.mark.parametrize(
    ('code', 'tail', 'status', 'line'),
    [
        (1, ['Traceback', 'KeyError: 3', ''], 'failed', 'exit code 1: KeyError: 3'),
        (0, [], 'failed', 'ended with exit code 0'),
        (-11, ['nothing of use'], 'failed', 'ended by SIGSEGV'),
        (-15, [], 'interrupted', 'ended by SIGTERM'),
        (-9, [], 'out_of_memory', 'killed by SIGKILL'),
        (-99, [], 'failed', 'ended by signal 99'),
    ],
)
def test_a_death_without_a_word_is_told_by_how_it_ended(code, tail, status, line):
    found, why = classify_exit(code, tail)
    assert found == status
    assert line in why
