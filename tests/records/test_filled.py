from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest

from mmgpu_hooks.records import (
    DurationStats,
    HostWindow,
    IntervalRecord,
    WorkersWindow,
)
from mmgpu_hooks.records.filled import fill_record

STATS = {
    'count': 2,
    'total_s': 3.0,
    'mean_s': 1.5,
    'p50_s': 1.5,
    'p95_s': 2.0,
    'max_s': 2.0,
}
WINDOW = {
    'count': 1,
    'window_s': 2.0,
    'iterations': 3,
    'cpu_s': 0.5,
    'run_delay_s': 0.25,
}
INTERVAL = {
    'iteration': 3,
    'epoch': 1,
    'iterations': 3,
    'elapsed_s': 4.0,
    'duration_s': 4.0,
    'data_wait': DurationStats(**STATS),
    'step': DurationStats(**STATS),
    'iter': DurationStats(**STATS),
    'ledger_s': {'step': 4.0},
}


@pytest.mark.parametrize(
    ('kind', 'fields'),
    [
        (DurationStats, STATS),
        (DurationStats, dict(reversed(STATS.items()))),
        (HostWindow, {}),
        (HostWindow, {'open_files': 5, 'cpu_pressure_pct': 25.0}),
        (WorkersWindow, WINDOW),
        (WorkersWindow, {'asks': 4, **WINDOW, 'fresh': True}),
        (IntervalRecord, INTERVAL),
        (IntervalRecord, {'images': 8, **INTERVAL}),
    ],
)
def test_a_record_is_the_one_its_constructor_makes(kind: Any, fields: dict[str, Any]):
    record, made = fill_record(kind, dict(fields)), kind(**fields)
    assert record == made
    assert repr(record) == repr(made)
    assert dataclasses.asdict(record) == dataclasses.asdict(made)
    assert copy.deepcopy(pickle.loads(pickle.dumps(record))) == made
    name = dataclasses.fields(kind)[0].name
    assert dataclasses.replace(record, **{name: 7}) == dataclasses.replace(
        made, **{name: 7}
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(record, name, 7)


def test_fields_stand_in_the_order_of_the_class():
    record = fill_record(DurationStats, dict(reversed(STATS.items())))
    assert list(vars(record)) == list(STATS)


def test_fields_left_out_stand_where_the_class_has_them():
    record = fill_record(HostWindow, {'open_files': 5, 'cpu_pressure_pct': 25.0})
    assert list(vars(record)) == list(vars(HostWindow()))


def test_two_records_share_no_default():
    first, second = (fill_record(IntervalRecord, dict(INTERVAL)) for _ in range(2))
    assert first.cards == second.cards == {}
    assert first.cards is not second.cards


@pytest.mark.parametrize(
    ('fields', 'reason'),
    [
        ({**STATS, 'min_s': 0.5}, 'missing: none, unknown: min_s'),
        ({'count': 2}, 'missing: max_s, mean_s, p50_s, p95_s, total_s, unknown: none'),
        ({**INTERVAL, 'count': 2}, 'expected the fields of DurationStats; missing: '),
    ],
)
def test_a_field_that_is_missing_or_unknown_is_an_error(fields, reason: str):
    with pytest.raises(TypeError, match=reason):
        fill_record(DurationStats, fields)
