from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fakes.replaced import replace
from fakes.sweeps import make_sweep_row as row
from mmgpu_hooks.experiment.sweep_identity import digest_config, read_identity
from mmgpu_hooks.experiment.sweep_ledger import (
    LEDGER_NAME,
    LedgerError,
    open_ledger,
    parse_ledger,
    render_line,
)
from mmgpu_hooks.experiment.sweep_plan import TrialLimits
from mmgpu_hooks.schema import Estimate

IDENTITY = {'config': 'abc', 'host': {'name': 'one'}, 'saves': False}
LIMITS = TrialLimits(60.0, 600.0)
MEASURED = row(2, evidence='trials/2/gpu_efficiency.jsonl', warm_up=1)


def parse(*lines: str, limits: TrialLimits = LIMITS, settings=(MEASURED.setting,)):
    return parse_ledger(lines, IDENTITY, limits, settings)


def test_a_trial_comes_back_as_it_was(tmp_path: Path):
    with open_ledger(tmp_path / 'a' / 'sweep') as ledger:
        ledger.append(replace(MEASURED, is_calibration=True), IDENTITY, LIMITS)
        kept = parse(*ledger.read_lines())
    assert kept.rows == (replace(MEASURED, is_reused=True),)
    assert kept.notes == ()


@pytest.mark.parametrize(
    ('kept', 'limits', 'is_reused'),
    [
        (MEASURED, LIMITS, True),
        (MEASURED, TrialLimits(600.0, 6000.0), True),
        # it did not settle, and now there is more time
        (replace(MEASURED, is_settled=False), LIMITS, True),
        (replace(MEASURED, is_settled=False), TrialLimits(61.0, 600.0), False),
        (row(2, None, status='out_of_memory'), LIMITS, True),
        (row(2, None, status='timed_out'), LIMITS, True),
        (row(2, None, status='timed_out'), TrialLimits(60.0, 601.0), False),
        # what crashed may have been mended, what was stopped says nothing
        (row(2, None), LIMITS, False),
        (row(2, None, status='interrupted'), LIMITS, False),
        (row(2, None, status='completed', error=None), LIMITS, False),
    ],
)
def test_what_is_done_need_not_be_done_again(kept, limits, is_reused):
    found = parse(render_line(kept, IDENTITY, LIMITS), limits=limits)
    assert bool(found.rows) is is_reused
    assert found.notes == ()


@pytest.mark.parametrize(
    ('changed', 'words'),
    [
        ({'config': 'abd'}, 'config'),
        ({'host': {'name': 'two'}}, 'host'),
        ({'host': {'name': 'two'}, 'saves': True}, 'host and saves'),
    ],
)
def test_what_was_measured_elsewhere_is_never_reused_silently(changed, words):
    line = render_line(MEASURED, {**IDENTITY, **changed}, LIMITS)
    found = parse(line)
    assert found.rows == ()
    said = f'1 earlier trial(s) are of another {words} and were not reused.'
    assert found.notes == (said,)


def test_the_newest_measurement_of_a_setting_counts():
    older, newer = row(2, 0.9), row(2, 0.4)
    lines = [render_line(one, IDENTITY, LIMITS) for one in (older, newer)]
    (found,) = parse(*lines).rows
    assert found.iter_s.value == 0.4


def test_a_setting_that_nobody_asks_for_is_left_where_it_is():
    line = render_line(MEASURED, IDENTITY, LIMITS)
    assert parse(line, settings=[row(4).setting]).rows == ()


@pytest.mark.parametrize(
    'line',
    [
        '{"version": 1, "row": {',
        '[]',
        'null',
        '{"version": 1}',
        '{"version": 1, "limits": {"x": 1}, "identity": {}, "row": {}}',
    ],
)
def test_a_torn_line_is_passed_over_and_counted(line):
    found = parse(line, '', render_line(MEASURED, IDENTITY, LIMITS))
    assert len(found.rows) == 1
    assert found.notes == (f'1 line(s) of {LEDGER_NAME} could not be read.',)


@pytest.mark.parametrize(
    ('path', 'value'),
    [
        ('row', [1]),
        ('row.setting.num_workers', [1]),
        ('row.setting.num_workers', True),
        ('row.status', 'bogus'),
        ('row.seconds', 'x'),
        ('row.iter_s', 0.5),
        ('row.iter_s', {'value': 0, 'low': 0, 'high': 0, 'count': 6}),
        ('row.iter_s.value', 'x'),
        ('row.iter_s.value', -5),
        ('row.iter_s.low', 0.6),
        ('row.iter_s.low', None),
        ('row.iter_s.low', -(10**400)),
        ('row.iter_s.high', float('inf')),
        ('limits.measure_s', 'x'),
        ('identity', 5),
    ],
)
def test_a_line_with_values_that_no_trial_gives_is_passed_over_too(path, value):
    body = json.loads(render_line(MEASURED, IDENTITY, LIMITS))
    *parents, last = path.split('.')
    holder = body
    for parent in parents:
        holder = holder[parent]
    holder[last] = value
    found = parse(json.dumps(body))
    assert found.rows == ()
    assert found.notes == (f'1 line(s) of {LEDGER_NAME} could not be read.',)


def test_a_drift_comes_back_with_its_interval_below_zero():
    drifting = replace(MEASURED, iter_s=Estimate(0.5, -0.1, 1.1, 6))
    (found,) = parse(render_line(drifting, IDENTITY, LIMITS)).rows
    assert found.iter_s == drifting.iter_s


def test_a_line_without_room_is_taken_back_and_says_why(tmp_path, monkeypatch):
    write = os.write
    with open_ledger(tmp_path) as ledger:
        ledger.append(MEASURED, IDENTITY, LIMITS)
        before = ledger.read_lines()
        monkeypatch.setattr(os, 'write', lambda to, raw: write(to, raw[:9]))
        with pytest.raises(OSError, match='room for only a part of a line') as caught:
            ledger.append(MEASURED, IDENTITY, LIMITS)
        assert ledger.read_lines() == before
    assert caught.value.strerror == 'room for only a part of a line'
    assert caught.value.filename == str(tmp_path / LEDGER_NAME)


def test_a_line_after_a_torn_one_stands_on_its_own(tmp_path: Path):
    (tmp_path / LEDGER_NAME).write_text('{"version": 1, "ro')
    with open_ledger(tmp_path) as ledger:
        ledger.append(MEASURED, IDENTITY, LIMITS)
        assert len(parse(*ledger.read_lines()).rows) == 1


def test_a_line_of_a_later_version_is_not_trusted():
    body = json.loads(render_line(MEASURED, IDENTITY, LIMITS))
    assert parse(json.dumps({**body, 'version': 2})).rows == ()


def test_two_sweeps_do_not_share_a_folder(tmp_path: Path):
    with (
        open_ledger(tmp_path),
        pytest.raises(LedgerError, match='another one is at work in it'),
        open_ledger(tmp_path),
    ):
        pass
    with open_ledger(tmp_path) as ledger:
        ledger.append(MEASURED, IDENTITY, LIMITS)
        ledger.clear()
        assert ledger.read_lines() == []


def make_function():
    def collate(items):
        return items

    return collate


def test_a_config_is_known_by_what_it_says():
    one = {('a',): 1, ('b', '0'): 'x', ('c',): print}
    assert digest_config(one) == digest_config(dict(reversed(one.items())))
    assert digest_config(one) != digest_config({**one, ('a',): 2})
    # the text of a function differs from process to process, its name does not
    assert digest_config({('c',): make_function()}) == digest_config(
        {('c',): make_function()}
    )
    assert digest_config({('c',): print}) != digest_config({('c',): len})


def test_what_a_measurement_depends_on_is_named():
    first = read_identity({('a',): 1}, saves=False, environ={'OMP_NUM_THREADS': '1'})
    again = read_identity({('a',): 1}, saves=False, environ={'OMP_NUM_THREADS': '1'})
    other = read_identity({('a',): 2}, saves=True, environ={})
    assert json.loads(json.dumps(first)) == first == again
    assert [name for name in first if first[name] != other[name]] == [
        'config',
        'environment',
        'saves',
    ]
