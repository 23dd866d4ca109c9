from __future__ import annotations

import dataclasses
import json
import math

import pytest

from fakes.runs import make_interval, make_run, make_workers
from mmgpu_hooks.evidence import codec
from mmgpu_hooks.evidence.codec import render_line
from mmgpu_hooks.evidence.parser import LineError, parse_line
from mmgpu_hooks.records import (
    CardWindow,
    EndRecord,
    GpuDevice,
    GpuWindow,
    ModelBytesRecord,
    SlowSample,
    SourceOffRecord,
    TransformCost,
)

RECORDS = [
    make_run(),
    make_run(gpu=GpuDevice('H200', 'GPU-1', 2**37, '570.1'), device='cuda'),
    make_interval(),
    make_interval(
        workers=make_workers(0.3),
        gpu=GpuWindow(12, 63.5, 20.0, 31.25, 2**33),
        gpu_mem_peak_bytes=2**32,
    ),
    dataclasses.replace(
        make_interval(),
        hooks_s={'EMAHook': 0.5},
        workers=dataclasses.replace(
            make_workers(0.3),
            worker_batches=(3, 4),
            transforms={'Mosaic': TransformCost(4, 0.25)},
            slowest=(SlowSample(0.5, 17, '42 a.jpg'), SlowSample(0.25, 3)),
        ),
        cards={'GPU-1': CardWindow(0, 4, 50.0)},
    ),
    ModelBytesRecord(1, parameters=12, parameter_bytes=48),
    SourceOffRecord('GPU', 'GPU is lost', 40),
    EndRecord('failed', 7, 3.5, {'step': 3.5}, {'EMAHook': 0.5}, 2, 'RuntimeError'),
]


@pytest.mark.parametrize('record', RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_comes_back_as_it_was(record):
    line = render_line(record)
    assert line.count('\n') == 1
    assert parse_line(line) == record


@pytest.mark.parametrize('figure', [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_written_as_unknown(figure: float):
    line = render_line(
        make_interval(by_hook={'EMAHook': figure}, system_cpu_pct=figure)
    )
    assert json.loads(line)['system_cpu_pct'] is None
    assert json.loads(line)['hooks_s'] == {'EMAHook': None}
    workers = dataclasses.replace(make_workers(0.3), worker_cpu_s=(0.5, figure))
    line = render_line(make_interval(workers=workers))
    assert json.loads(line)['workers']['worker_cpu_s'] == [0.5, None]


def test_names_are_kept_whatever_is_in_them():
    names = ['50 %s', '"quoted"', 'a:nan,b', ':inf}', 'é\n', '%']
    hooks_s = {name: 0.25 + place for place, name in enumerate(names)}
    slowest = (SlowSample(0.5, 1, 'x:nan,y %d'),)
    workers = dataclasses.replace(make_workers(0.3), slowest=slowest)
    record = make_interval(by_hook=hooks_s, workers=workers, system_cpu_pct=12.5)
    assert parse_line(render_line(record)) == record
    unknown = dataclasses.replace(record, system_cpu_pct=math.inf)
    kept = dataclasses.replace(record, system_cpu_pct=None)
    assert parse_line(render_line(unknown)) == kept


def test_figures_are_kept_to_the_nanosecond():
    line = render_line(make_interval(system_cpu_pct=1 / 3, elapsed_s=86400.123456789))
    assert json.loads(line)['system_cpu_pct'] == 0.333333333
    assert json.loads(line)['elapsed_s'] == 86400.123456789


def test_each_kind_of_value_in_one_place_is_rendered_as_what_it_is():
    for pct in (None, 2, 2.5, None):
        line = render_line(make_interval(system_cpu_pct=pct))
        assert json.loads(line)['system_cpu_pct'] == pct
    for fresh in (True, False):
        workers = dataclasses.replace(make_workers(0.3), fresh=fresh)
        line = render_line(make_interval(workers=workers))
        assert json.loads(line)['workers']['fresh'] is fresh


def test_lists_of_any_length_and_kind_are_rendered_as_what_they_are():
    for cpu_s in ((), (0.5,), (0.5, 2), (2, 0.5), (None, True, 'a %s'), ((0.25,), ())):
        workers = dataclasses.replace(make_workers(0.3), worker_cpu_s=cpu_s)
        line = render_line(make_interval(workers=workers))
        assert json.loads(line)['workers']['worker_cpu_s'] == json.loads(
            json.dumps(cpu_s)
        )


def test_runs_with_ever_new_names_keep_no_more_than_some_shapes():
    for number in range(300):
        hooks_s = {f'Hook{number}': 0.5}
        line = render_line(make_interval(by_hook=hooks_s))
        assert json.loads(line)['hooks_s'] == hooks_s
    assert len(codec._shapes) <= 256


def test_what_json_does_not_know_is_refused():
    with pytest.raises(TypeError, match='a record holds a object'):
        render_line(make_interval(by_hook={'EMAHook': object()}))


def edited(record: object, **fields: object) -> str:
    kinds = {'RunRecord': 'run', 'IntervalRecord': 'interval'}
    body = dataclasses.asdict(record)  # type: ignore[call-overload]
    return json.dumps({'kind': kinds[type(record).__name__], **body, **fields})


WORKERS = dataclasses.asdict(make_workers(0.3))


@pytest.mark.parametrize(
    ('line', 'reason'),
    [
        ('{"kind": "inter', 'not JSON'),
        ('[1, 2]', 'no JSON object with a "kind"'),
        ('{"iteration": 3}', 'no JSON object with a "kind"'),
        ('{"kind": "interval"}', 'a field is missing'),
        ('{"kind": "run", "run_id": "x"}', 'a run record without a "schema"'),
        (edited(make_interval(), iteration='12'), '"iteration": expected int'),
        (edited(make_interval(), iteration=True), '"iteration": expected int'),
        (edited(make_interval(), duration_s=None), '"duration_s": expected a finite'),
        (edited(make_interval(), duration_s=-1.0), '"duration_s": expected a finite'),
        (edited(make_interval(), duration_s=1e300), '"duration_s": expected a finite'),
        (edited(make_interval(), images=-4), '"images": expected a whole number'),
        (edited(make_interval(), images=10**400), '"images": expected a whole'),
        (
            edited(make_interval(), workers={**WORKERS, 'worker_batches': {'0': 3}}),
            '"workers": "worker_batches": expected a list',
        ),
        (
            edited(make_interval(), workers={**WORKERS, 'worker_batches': [3, -1]}),
            '"workers": "worker_batches": expected a whole number',
        ),
        ('[' * 200_000, 'not JSON'),
        (
            '{"kind":"end","status":"odd","iterations":1,"duration_s":1,"ledger_s":{}}',
            '"status": expected one of',
        ),
        (edited(make_interval(), step={'count': 1}), '"step": a field is missing'),
        (edited(make_interval(), ledger_s=[1]), '"ledger_s": expected an object'),
        (edited(make_interval(), ledger_s={'step': 'x'}), '"ledger_s": expected a fin'),
    ],
)
def test_a_line_that_is_no_record_is_refused_with_the_reason(line, reason):
    with pytest.raises(LineError, match=reason):
        parse_line(line)


def test_infinity_in_a_file_is_refused():
    line = render_line(make_interval()).replace(
        '"duration_s":6.000000000', '"duration_s":1e999'
    )
    assert '1e999' in line
    with pytest.raises(LineError, match='finite'):
        parse_line(line)


def test_newer_kinds_are_skipped_and_newer_fields_ignored():
    assert parse_line('{"kind": "hologram", "x": 1}') is None
    assert parse_line(edited(make_interval(), shiny=1)) == make_interval()
