"""Tests the stack of timed calls in a validation, by a fake clock."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import Any

import pytest

from fakes.clock import HandClock
from mmgpu_hooks.measure.validation_parts import (
    DATA_WAIT,
    FORWARD,
    REST,
    PartCall,
    TimedCall,
    ValidationParts,
)

METRIC = PartCall('metric', 'CocoMetric')


@pytest.fixture
def clock():
    return HandClock()


@pytest.fixture
def parts(clock):
    return ValidationParts({}, clock)


def run(parts: ValidationParts, clock: HandClock, call: PartCall, *spent: Any) -> None:
    """Runs a fake call that takes seconds and calls others in between."""
    depth = parts.begin(call)
    for step in spent:
        if isinstance(step, tuple):
            run(parts, clock, *step)
        else:
            clock.turn(step)
    parts.end(depth)


def test_inner_calls_are_counted_once(parts, clock):
    clock.turn(0.5)
    run(parts, clock, DATA_WAIT, 2.0)
    gather = PartCall('gather', 'CocoMetric')
    run(parts, clock, gather, 0.25, (METRIC, 3.0, (FORWARD, 1.0), 0.5), 0.75)
    clock.turn(1.0)
    assert parts.sum_up(9.0) == {
        'data_wait': 2.0,
        'gather': 1.0,
        'metric': 3.5,
        'forward': 1.0,
        'rest': 1.5,
    }
    assert parts.sum_metrics('metric') == {'CocoMetric': 3.5}
    assert parts.sum_metrics('process') == {}


def test_the_open_call_and_its_longest_time_before_are_known(parts, clock):
    run(parts, clock, METRIC, 2.0)
    run(parts, clock, METRIC, 0.5)
    depth = parts.begin(METRIC)
    clock.turn(4.0)
    state = parts.read()
    assert (state.call, state.elapsed_s) == (METRIC, 6.5)
    assert clock() - state.since_s == 4.0
    assert state.parts_s == {'rest': 0.0, 'metric': 6.5}
    assert parts.longest_s[METRIC] == 2.0
    parts.end(depth)
    assert parts.longest_s[METRIC] == 4.0


def test_what_an_error_left_open_ends_with_what_called_it(parts, clock):
    outer = parts.begin(METRIC)
    parts.begin(FORWARD)
    clock.turn(1.0)
    parts.end(outer)
    clock.turn(1.0)
    assert parts.read().call == REST
    assert parts.sum_up(2.0) == {'forward': 1.0, 'metric': 0.0, 'rest': 1.0}


def test_calls_of_other_threads_are_left_alone(parts):
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(parts.begin(METRIC)))
    thread.start()
    thread.join()
    assert found == [None]
    parts.end(None)
    assert parts.read().call == REST


class Metric:
    """Metric that can be pickled."""

    def compute(self, number: int) -> int:
        """Doubles a number."""
        return 2 * number


def test_a_copy_has_the_method_that_was_replaced(parts):
    metric: Any = Metric()
    vars(metric)['compute'] = TimedCall(parts, METRIC, metric.compute)
    assert metric.compute(2) == 4
    assert metric.compute.__doc__ == 'Doubles a number.'
    for other in (pickle.loads(pickle.dumps(metric)), copy.deepcopy(metric)):
        assert not isinstance(other.compute, TimedCall)
        assert other.compute(3) == 6
        assert other.compute.__self__ is other
    assert parts.sum_metrics('metric').keys() == {'CocoMetric'}


def test_what_a_call_raises_passes_through(parts):
    with pytest.raises(ZeroDivisionError):
        TimedCall(parts, METRIC, lambda: 1 // 0)()
    assert parts.read().call == REST
