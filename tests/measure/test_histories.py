"""Tests that copying scalar histories is timed from a minimum length, per doubling."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from mmgpu_hooks.measure.histories import HistoryMeter


def make_histories(*lengths: int) -> dict[str, SimpleNamespace]:
    return {
        str(number): SimpleNamespace(data=(np.zeros(length), np.ones(length, int)))
        for number, length in enumerate(lengths)
    }


def test_histories_that_grow_in_each_iteration_are_copied_and_timed():
    ticks = iter((1.0, 1.5))
    meter = HistoryMeter(
        make_histories(12_000, 11_000, 6_000, 5_999, 40), clock=lambda: next(ticks)
    )
    copied = meter.read(12_000)
    assert copied == (12_000, 3, 1.5)


def test_nothing_is_measured_before_and_between():
    histories = make_histories(9_999)
    meter = HistoryMeter(histories)
    assert meter.read(9_999) is None
    # resumed scalars that were not kept are short
    assert meter.read(10_000) is None
    histories.update(make_histories(25_000))
    assert meter.read(19_999) is None
    assert meter.read(25_000) is not None
    assert meter.read(49_999) is None
    assert meter.read(50_000) is not None


def test_a_training_without_scalars_has_nothing_to_measure():
    assert HistoryMeter({}).read(10**6) is None
