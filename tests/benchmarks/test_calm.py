from __future__ import annotations

from benchmarks.machine import StrangerLoad
from fakes.calm import find_disturbance


def make_load(busy_s: float) -> StrangerLoad:
    """Ten seconds of two CPUs, of which others used so much and we nothing."""
    busy, clock = iter([0.0, busy_s]), iter([0.0, 10.0])
    return StrangerLoad(lambda: next(busy), lambda: 0.0, lambda: next(clock), cpus=2)


def test_strangers_are_a_disturbance():
    assert find_disturbance(make_load(10.0)) == 'strangers used 50 % of the machine'


def test_without_strangers_the_machine_itself_is_asked():
    found = find_disturbance(make_load(0.0))
    assert found is None or 'strangers' not in found
