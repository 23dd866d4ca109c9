"""Tests comparing data waits after a checkpoint save with the usual data waits."""

from __future__ import annotations

from typing import Any

import pytest

from mmgpu_hooks.hooks.saves import WaitsAfterSaves
from mmgpu_hooks.schema.recorded import AfterSaveRecord


def after(*figures: Any) -> AfterSaveRecord:
    names = ('iteration', 'iterations', 'waits_s', 'usual_wait_s')
    return AfterSaveRecord(**dict(zip(names, figures)))


SAVE, CUT = True, False
CASES = {
    'for as long as what was made ahead can last': (
        {'horizon': 3},
        [(2, SAVE)],
        [0.25, 0.75, 0.0, 0.0, 0.125, 9.0],
        [after(2, 3, 0.125, 0.5)],
    ),
    'the next save ends it': (
        {'horizon': 4},
        [(1, SAVE), (3, SAVE)],
        [1.0, 0.5, 0.25, 0.0, 0.0, 0.0, 0.0],
        [after(1, 2, 0.75, 1.0), after(3, 4, 0.0, 1.0)],
    ),
    'two saves at one iteration share it': (
        {'horizon': 1},
        [(1, SAVE), (1, SAVE)],
        [1.0, 0.5, 1.0],
        [after(1, 1, 0.5, 1.0)],
    ),
    'a validation ends it': (
        {'horizon': 4},
        [(1, SAVE), (2, CUT)],
        [1.0, 0.5, 7.0, 7.0],
        [after(1, 1, 0.5, 1.0)],
    ),
    'a validation at once leaves nothing': (
        {'horizon': 4},
        [(1, SAVE), (1, CUT)],
        [1.0, 0.0, 0.0],
        [after(1, 0, 0.0, 1.0)],
    ),
    'without waits before, the usual one is unknown': (
        {'horizon': 1},
        [(0, SAVE)],
        [0.5],
        [after(0, 1, 0.5, None)],
    ),
    'fewer waits than workers are no usual ones': (
        {'horizon': 1, 'round_of': 3},
        [(2, SAVE)],
        [0.0, 0.5, 0.5],
        [after(2, 1, 0.5, None)],
    ),
    'without workers nothing is made ahead': (
        {'horizon': 0},
        [(1, SAVE)],
        [1.0, 1.0],
        [],
    ),
}


@pytest.fixture
def records():
    return []


def waits_after(records: list[AfterSaveRecord], **arguments: Any) -> WaitsAfterSaves:
    given: dict[str, Any] = {'round_of': 1, **arguments}
    return WaitsAfterSaves(start=0, write=records.append, **given)


@pytest.mark.parametrize('case', list(CASES))
def test_waits_after_a_save_are_recorded_up_to_a_horizon_or_a_cut(case, records):
    arguments, events, waits, expected = CASES[case]
    found = waits_after(records, **arguments)
    for iteration, is_save in events:
        found.add(iteration, is_save)
    found.add_waits(waits)
    assert records == expected
    found.finish()
    assert records == expected


def test_waits_come_in_parts_and_workers_that_start_anew_end_them(records):
    found = waits_after(records, horizon=4)
    found.add(1, SAVE)
    found.add_waits([1.0, 30.0, 1.0], firsts=[1])
    expected = [after(1, 0, 0.0, 1.0)]
    assert records == expected
    found.add(3, SAVE)
    found.add_waits([0.0, 0.5])
    assert records == expected
    found.add_waits([0.0, 0.0])
    expected.append(after(3, 4, 0.5, 1.0))
    assert records == expected
    found.add(7, SAVE)
    found.finish()
    assert records == [*expected, after(7, 0, 0.0, 1.0)]
