"""Tests the guard against failing measurement sources, without a training."""

from __future__ import annotations

import pytest

from mmgpu_hooks.hooks.recording import Guard


def fail() -> None:
    raise ValueError('two\n  lines')


def test_a_warning_that_fails_does_no_harm():
    guard = Guard(lambda source, reason: fail())
    assert guard.run('clock', fail) is None
    assert guard.off == {'clock': 'ValueError: two lines'}
    calls: list[int] = []
    guard.clean_up('clock', calls.append, 1)
    assert calls == [1]


def test_what_torch_raises_for_a_dead_worker_is_for_the_training():
    def be_interrupted() -> None:
        raise RuntimeError('DataLoader worker (pid 7) is killed by signal: Killed. ')

    guard = Guard(lambda source, reason: None)
    with pytest.raises(RuntimeError, match='pid 7'):
        guard.run('clock', be_interrupted)
    assert guard.off == {}


@pytest.mark.parametrize('stop', [KeyboardInterrupt, SystemExit])
def test_a_wish_to_stop_is_no_failure(stop):
    def interrupt() -> None:
        raise stop

    guard = Guard(lambda source, reason: None)
    with pytest.raises(stop):
        guard.run('clock', interrupt)
    assert guard.off == {}
