"""Tests the published scalars in MMEngine's log, for all log intervals."""

from __future__ import annotations

import pytest

from training.toy import (
    HOOK,
    build_runner,
    evidence_of,
    scalar_lines,
    summarize_scalars,
)


@pytest.mark.parametrize('loop', ['epoch', 'iter'])
def test_a_line_without_a_new_interval_repeats_no_value(tmp_path, loop):
    hook = {**HOOK, 'interval': 7}
    runner = build_runner(tmp_path, loop=loop, iterations=24, log_interval=3, hook=hook)
    runner.train()
    intervals = evidence_of(tmp_path).intervals
    assert [record.iteration for record in intervals] == [7, 14, 21, 24]
    shown = {line['step']: line.get('data_wait_s') for line in scalar_lines(tmp_path)}
    assert {step for step, value in shown.items() if value is not None} == {9, 15, 21}
    for step, record in zip((9, 15, 21), intervals):
        assert shown[step] == pytest.approx(record.data_wait.mean_s, rel=1e-6, abs=1e-9)


def test_values_are_in_the_message_hub_with_one_entry_each(tmp_path):
    runner = build_runner(tmp_path, hook={**HOOK, 'scalars': 'all'})
    runner.train()
    last = evidence_of(tmp_path).intervals[-1]
    for name, value in summarize_scalars(last).items():
        buffer = runner.message_hub.get_scalar(f'train/{name}')
        assert buffer.data[0].tolist() == [pytest.approx(value, rel=1e-6, abs=1e-9)]
