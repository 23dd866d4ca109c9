"""The guard: a source fails once, and what it opened is let go all the same."""

from __future__ import annotations

import pytest

from mmgpu_hooks.hooks.guard import Guard


def fail() -> None:
    raise ValueError('two\n  lines')


def test_a_failing_source_is_off_and_named_once() -> None:
    said: list[tuple[str, str]] = []
    guard = Guard(lambda source, reason: said.append((source, reason)))
    calls: list[int] = []
    assert guard.run('clock', len, 'abc') == 3
    assert guard.run('clock', fail) is None
    assert guard.run('clock', calls.append, 1) is None
    guard.run('clock', fail)
    assert calls == []
    assert said == [('clock', 'ValueError: two lines')]
    assert guard.run('other', len, 'ab') == 2


def test_cleaning_up_is_done_for_a_source_that_is_off() -> None:
    said: list[tuple[str, str]] = []
    guard = Guard(lambda source, reason: said.append((source, reason)))
    guard.run('file', fail)
    calls: list[int] = []
    guard.clean_up('file', calls.append, 1)
    guard.clean_up('file', fail)
    assert calls == [1]
    assert len(said) == 1


def test_a_warning_that_fails_does_no_harm() -> None:
    guard = Guard(lambda source, reason: fail())
    assert guard.run('clock', fail) is None
    assert guard.off == {'clock': 'ValueError: two lines'}


@pytest.mark.parametrize('stop', [KeyboardInterrupt, SystemExit])
def test_a_wish_to_stop_is_no_failure(stop: type[BaseException]) -> None:
    def interrupt() -> None:
        raise stop

    guard = Guard(lambda source, reason: None)
    with pytest.raises(stop):
        guard.run('clock', interrupt)
    assert guard.off == {}
