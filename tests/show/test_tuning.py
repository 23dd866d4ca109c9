"""Tests what the log and the summary say of changes by ``tune=True``."""

from __future__ import annotations

import pytest

from fakes.replaced import replace
from fakes.runs import make_evidence
from fakes.tuning import judge, propose, settings
from mmgpu_hooks.schema.recorded import TunedRecord
from mmgpu_hooks.show.tuning import list_tuned, phrase_tuned
from mmgpu_hooks.show.words import say

NONE, TWO = settings(0), settings(2)


def change(**more: float | str | None) -> TunedRecord:
    record = propose(NONE, TWO).proposed
    assert record is not None
    return replace(record, **more)


def judged(reason: str, **more: float) -> TunedRecord:
    record = judge(TWO, TWO, reason).judged
    assert record is not None
    return replace(record, **more)


def summarize(*tuned: TunedRecord) -> str:
    (line,) = map(say, list_tuned(replace(make_evidence(), tuned=tuned)))
    return line


@pytest.mark.parametrize(
    ('last', 'said'),
    [
        (judged('gain'), 'predicted 66 % less time, measured 66 %, kept'),
        (
            judged('other_load'),
            'predicted 66 % less time, kept (unjudged, other programs came or went)',
        ),
    ],
)
def test_a_gain_is_claimed_where_it_was_judged(last, said):
    assert summarize(change(), last).endswith(f'at iteration 0: {said}')


def test_what_was_found_before_has_no_iteration():
    found = change(reason='found_before', gain_pct=None)
    assert summarize(found) == (
        'num_workers 0 -> 2, which the run that is resumed had found'
    )


def test_no_interval_goes_beyond_all_of_the_time():
    line = say(phrase_tuned(judged('gain', gain_high_pct=134.0)))
    assert line.endswith('(66 % less time, 60 to 100 %)')
