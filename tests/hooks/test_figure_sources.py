"""Tests sources of measured values: each opens, reads, closes and fails separately."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from mmgpu_hooks.hooks.figure_source import (
    FigureSource,
    IntervalEnd,
    SourceList,
    SourceName,
    prefix_reasons,
)
from mmgpu_hooks.hooks.recording import Guard
from mmgpu_hooks.measure.absent import AbsentError

FIELDS = {
    SourceName.GPU: 'gpu_idle_iterations',
    SourceName.HOST: 'images',
    SourceName.MEMORY: 'batch_tensors',
}
"""Field of the interval's record that each scripted source gives."""


class Scripted(FigureSource):
    """Source of measured values that counts its calls and fails on demand.

    Args:
        name: The source that it plays.
        given: What it reads; by default the number of iterations, as its own field.
        fails: By method, what it raises.
    """

    def __init__(self, name: SourceName, given: Any = None, **fails: Exception) -> None:
        self.name = name  # type: ignore[misc]
        self.given, self.fails = given, fails
        self.calls: list[str] = []

    def _call(self, method: str) -> None:
        self.calls.append(method)
        if method in self.fails:
            raise self.fails[method]

    def open(self) -> None:
        self._call('open')

    def read(self, interval: IntervalEnd) -> dict[str, Any]:
        self._call('read')
        if self.given is not None:
            return self.given
        return {FIELDS[self.name]: interval.iterations}

    @property
    def unknown(self) -> Mapping[str, str]:
        if 'unknown' in self.fails:
            raise self.fails['unknown']
        return prefix_reasons(self.name, {'figure': 'hidden'})

    def close(self) -> None:
        self._call('close')


@pytest.fixture
def guard():
    return Guard(lambda source, reason: None)


def test_a_source_that_fails_leaves_the_others_their_figures(guard):
    sources = SourceList(guard)
    failing = Scripted(SourceName.HOST, read=ValueError('planted'))
    first, last = Scripted(SourceName.GPU), Scripted(SourceName.MEMORY)
    for source in (first, failing, last):
        assert sources.open(source) is source
    for iterations in (3, 4):
        interval = IntervalEnd(10, iterations)
        assert sources.read(interval) == {
            'gpu_idle_iterations': iterations,
            'batch_tensors': iterations,
        }
    # it is asked once, and closed with the others
    assert failing.calls == ['open', 'read']
    sources.close()
    assert [source.calls[-1] for source in (first, failing, last)] == ['close'] * 3
    assert guard.off == {'host': 'ValueError: planted'}


@pytest.mark.parametrize(
    ('error', 'where'),
    [(AbsentError('no card'), 'absent'), (OSError('no driver'), 'off')],
    ids=['absent', 'broken'],
)
def test_a_source_that_cannot_be_opened_is_never_read_but_closed(guard, error, where):
    sources = SourceList(guard)
    source = sources.open(Scripted(SourceName.GPU, open=error))
    assert sources.read(IntervalEnd(10, 3)) == {}
    sources.close()
    assert source.calls == ['open', 'close']
    assert list(getattr(guard, where)) == ['GPU']


@pytest.mark.parametrize(
    ('given', 'reason'),
    [
        ({'img': 1, 'images': 2}, 'no record has the field img'),
        (7, "TypeError: 'int' object is not iterable"),
    ],
    ids=['a field that no record has', 'no fields'],
)
def test_a_source_that_gives_what_no_record_takes_fails_alone(guard, given, reason):
    sources = SourceList(guard)
    sources.open(Scripted(SourceName.HOST, given))
    sources.open(Scripted(SourceName.GPU))
    assert sources.read(IntervalEnd(10, 3)) == {'gpu_idle_iterations': 3}
    assert guard.off == {'host': reason}


def test_a_source_whose_reasons_fail_leaves_the_others_theirs(guard):
    sources = SourceList(guard)
    sources.open(Scripted(SourceName.HOST, unknown=ValueError('planted')))
    sources.open(Scripted(SourceName.GPU))
    assert sources.unknown == {'GPU figure': 'hidden'}
    assert guard.off == {'host': 'ValueError: planted'}


def test_a_source_that_cannot_be_closed_lets_the_others_close(guard):
    sources = SourceList(guard)
    first = sources.open(Scripted(SourceName.HOST))
    sources.open(Scripted(SourceName.GPU, close=OSError('stuck')))
    sources.close()
    assert first.calls == ['open', 'close']


def test_reasons_of_all_sources_are_collected(guard):
    sources = SourceList(guard)
    sources.open(Scripted(SourceName.HOST))
    sources.open(Scripted(SourceName.GPU))
    assert sources.unknown == {'host figure': 'hidden', 'GPU figure': 'hidden'}


def test_the_name_of_a_source_is_its_text_wherever_it_is_shown():
    name = SourceName.GPU_IDLE
    assert (f'{name}', str(name), f'{name:.3}') == (
        'GPU idle',
        'GPU idle',
        'GPU',
    )
    assert {'GPU idle': 1}[name] == 1
    assert msgspec.json.encode(name) == b'"GPU idle"'
