from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import numpy as np
import pytest

from fakes.replaced import replace
from fakes.runs import make_interval, make_run, make_workers
from mmgpu_hooks.schema.lines import LineError, decode_line, encode_line
from mmgpu_hooks.schema.recorded import EndRecord, EvidenceLine, GpuDevice, GpuWindow

RECORDS = [
    make_run(gpu=GpuDevice(name='H200', uuid='GPU-1'), device='cuda'),
    make_interval(
        by_hook={'EMAHook': 0.5, '50 % "quoted"': 0.25, 'é\n': 1.0},
        workers=replace(make_workers(0.3), transforms_s={'Mosaic': 0.25}),
        gpu=GpuWindow(samples=12, util_pct=63.5, zero_pct=20.0, mem_used_bytes=2**33),
        gpu_mem_peak_bytes=2**32,
    ),
    EndRecord(
        status='failed',
        iterations=7,
        duration_s=3.5,
        ledger_s={'step': 3.5},
        error='RuntimeError',
    ),
]


@pytest.mark.parametrize('record', RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_comes_back_as_it_was(record):
    line = encode_line(record)
    assert line.count(b'\n') == 1
    assert decode_line(line) == record


@pytest.mark.parametrize('figure', [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_written_as_unknown(figure: float):
    body = json.loads(encode_line(make_interval(system_cpu_pct=figure)))
    assert body['system_cpu_pct'] is None


def test_what_is_unknown_or_empty_is_left_out_of_an_interval():
    body = json.loads(encode_line(make_interval()))
    assert not {'hooks_s', 'gpu', 'workers', 'first_waits'} & body.keys()
    # the first line says all that a reader may ask for
    assert {'schema', 'rank', 'gpu'} <= json.loads(encode_line(make_run())).keys()


def test_figures_of_numpy_are_numbers():
    record = make_interval(
        system_cpu_pct=np.float64(12.5),
        process_cpu_s=np.float32(0.5),
        images=np.int64(3),
    )
    plain = make_interval(system_cpu_pct=12.5, process_cpu_s=0.5, images=3)
    assert decode_line(encode_line(record)) == plain


def test_a_path_that_is_no_utf_8_can_be_recorded():
    record = make_run(work_dir='/runs/\udcff', started_unix_s=math.nan)
    assert json.loads(encode_line(record))['work_dir'] == '/runs/?'
    interval = make_interval(by_hook={'a\ud800': 0.5}, system_cpu_pct=math.nan)
    kept = make_interval(by_hook={'a?': 0.5}, system_cpu_pct=None)
    assert decode_line(encode_line(interval)) == kept


def test_what_json_does_not_know_is_refused():
    odd: dict[str, Any] = {'EMAHook': object()}
    with pytest.raises(TypeError, match='a record holds a object'):
        encode_line(make_interval(by_hook=odd))


def edited(record: EvidenceLine, **fields: object) -> bytes:
    return json.dumps({**json.loads(encode_line(record)), **fields}).encode()


WORKERS = json.loads(msgspec.json.encode(make_workers(0.3)))


@pytest.mark.parametrize(
    ('line', 'reason'),
    [
        (b'{"kind": "inter', 'truncated'),
        (b'{"iteration": 3}', 'missing required field `kind`'),
        (edited(make_interval(), iteration='12'), r'Expected `int`.*\$.iteration'),
        (edited(make_interval(), duration_s=-1.0), r'>= 0.* - at `\$.duration_s'),
        (edited(make_interval(), duration_s=1e300), r'<= 1.* - at `\$.duration_s'),
        (edited(make_interval(), images=10**400), r'\$.images'),
        (
            edited(make_interval(), workers={**WORKERS, 'pss_bytes': -1}),
            r'>= 0 - at `\$.workers.pss_bytes',
        ),
        (b'[' * 200_000, 'Expected `object`'),
        (edited(make_interval(), duration_s=math.nan), 'malformed'),
        (edited(make_interval()).replace(b'20', b'1e999', 1), 'out of range'),
        (edited(RECORDS[-1], status='odd'), "Invalid enum value 'odd'"),
        (edited(make_interval(), step={'count': 1}), 'missing required field'),
    ],
)
def test_a_line_that_is_no_record_is_refused_with_the_reason(line, reason):
    with pytest.raises(LineError, match=reason):
        decode_line(line)


def test_newer_kinds_are_skipped_and_newer_fields_ignored():
    assert decode_line(b'{"kind": "hologram", "x": 1}') is None
    assert decode_line(edited(make_interval(), shiny=1)) == make_interval()
