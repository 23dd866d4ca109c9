from __future__ import annotations

from collections import namedtuple

import pytest

from fakes.clock import HandClock
from mmgpu_hooks.experiment.strangers import StrangerMeter
from mmgpu_hooks.measure.host import CpuMeter

Times = namedtuple('Times', ['user', 'idle'])


@pytest.mark.parametrize(
    ('busy_s', 'own', 'cores'),
    [
        # of 4 CPUs over 10 s
        (20.0, [5.0, 10.0], 0.5),
        (15.0, [5.0, 10.0], 0.0),
        (10.0, [5.0, 10.0], 0.0),
        (20.0, [5.0, None], None),
    ],
)
def test_what_is_busy_and_not_ours_is_others(busy_s, own, cores):
    clock, times, used = HandClock(), [Times(0.0, 0.0)], [0.0, 0.0]
    meter = CpuMeter(lambda: times[0], clock)
    strangers = StrangerMeter([lambda: used[0], lambda: used[1]], meter, clock, cpus=4)
    clock.turn(10.0)
    times[0], used[:] = Times(busy_s, 40.0 - busy_s), own
    found = strangers.read_cores()
    assert found == (None if cores is None else pytest.approx(cores))


def test_a_host_that_does_not_tell_leaves_it_unknown():
    def refuse():
        raise OSError('no /proc')

    clock = HandClock()
    strangers = StrangerMeter([lambda: 1.0], CpuMeter(refuse, clock), clock, cpus=4)
    clock.turn(1.0)
    assert strangers.read_cores() is None
