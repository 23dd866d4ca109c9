from __future__ import annotations

import math

import pytest

from fakes.replaced import replace
from fakes.runs import (
    make_evidence,
    make_gpu_fields,
    make_gpu_run,
    make_interval,
    make_run,
)
from mmgpu_hooks.evidence.summary import fold_run
from mmgpu_hooks.evidence.summary_gpu import fold_imbalance
from mmgpu_hooks.schema import CardWindow, GpuWindow, RunEvidence, RunSummary


def fold(*windows: tuple[int, GpuWindow]) -> GpuWindow:
    """Windows with their iterations; an interval of warm-up comes before."""
    records = [
        make_interval(index, iterations=iterations, gpu=gpu)
        for index, (iterations, gpu) in enumerate(windows)
    ]
    evidence = RunEvidence('x', make_run(), (make_interval(), *records))
    gpu = fold_run(evidence).gpu
    assert gpu is not None
    return gpu


def test_means_are_weighted_by_seconds_and_extremes_are_the_largest():
    gpu = fold(
        (
            10,
            GpuWindow(samples=5, power_w=100.0, temperature_c=70.0, sm_active_pct=80.0),
        ),
        (
            30,
            GpuWindow(samples=5, power_w=300.0, temperature_c=60.0, others_mem_bytes=9),
        ),
    )
    assert gpu.power_w == pytest.approx(250.0)
    assert gpu.temperature_c == 70.0
    # told by one window only
    assert gpu.sm_active_pct == pytest.approx(80.0)
    assert gpu.others_mem_bytes == 9
    assert (gpu.util_pct, gpu.tensor_active_pct, gpu.source) == (None, None, None)


def test_utilisation_is_weighted_by_what_was_sampled_of_an_interval():
    gpu = fold(
        # the driver's buffer was silent for most of it
        (
            30,
            GpuWindow(
                samples=5, util_pct=100.0, zero_pct=0.0, power_w=300.0, sampled_s=1.0
            ),
        ),
        (
            10,
            GpuWindow(
                samples=5, util_pct=20.0, zero_pct=40.0, power_w=100.0, sampled_s=3.0
            ),
        ),
    )
    assert (gpu.util_pct, gpu.zero_pct) == pytest.approx((40.0, 30.0))
    assert gpu.sampled_s == pytest.approx(4.0)
    # clocks and the like were looked at all the time
    assert gpu.power_w == pytest.approx(250.0)
    cards = (
        (
            30,
            CardWindow(
                index=0,
                samples=5,
                util_pct=100.0,
                zero_pct=0.0,
                mem_used_bytes=None,
                sm_clock_mhz=2000.0,
                sampled_s=1.0,
            ),
        ),
        (
            10,
            CardWindow(
                index=0,
                samples=5,
                util_pct=20.0,
                zero_pct=40.0,
                mem_used_bytes=None,
                sm_clock_mhz=1000.0,
                sampled_s=3.0,
            ),
        ),
    )
    records = [
        make_interval(index, iterations=iterations, cards={'GPU-0': card})
        for index, (iterations, card) in enumerate(cards)
    ]
    evidence = RunEvidence('x', make_run(), (make_interval(), *records))
    card = fold_run(evidence).cards['GPU-0']
    assert (card.util_pct, card.zero_pct) == pytest.approx((40.0, 30.0))
    assert (card.sm_clock_mhz, card.sampled_s) == pytest.approx((1750.0, 4.0))


@pytest.mark.parametrize('part', ['validation', 'checkpoint_save'])
def test_means_are_of_plain_training_where_there_is_enough(part: str):
    def fold_with(calm: int) -> tuple[GpuWindow | None, CardWindow]:
        window = GpuWindow(
            samples=5,
            util_pct=90.0,
            mem_used_bytes=1,
            temperature_c=50.0,
            power_w=300.0,
        )
        card = CardWindow(index=0, samples=5, util_pct=90.0, mem_used_bytes=1)
        records = [
            make_interval(index, gpu=window, cards={'GPU-0': card})
            for index in range(1 + calm)
        ]
        busy = make_interval(9)
        records.append(
            replace(
                busy,
                ledger_s={**busy.ledger_s, part: 1.0},
                gpu=replace(window, util_pct=0.0, mem_used_bytes=9, power_w=0.0),
                cards={'GPU-0': replace(card, util_pct=0.0, mem_used_bytes=9)},
            )
        )
        summary = fold_run(RunEvidence('x', make_run(), tuple(records)))
        return summary.gpu, summary.cards['GPU-0']

    gpu, card = fold_with(3)
    assert gpu is not None
    assert (gpu.util_pct, gpu.power_w, card.util_pct) == (90.0, 300.0, 90.0)
    assert (gpu.samples, card.samples) == (15, 15)
    # what was reached was reached
    assert (gpu.mem_used_bytes, card.mem_used_bytes) == (9, 9)
    gpu, card = fold_with(2)
    assert gpu is not None
    assert (gpu.util_pct, card.util_pct) == pytest.approx((60.0, 60.0))


def test_the_swing_between_intervals_is_in_the_spread():
    gpu = fold(
        (20, GpuWindow(samples=5, util_pct=100.0, util_std_pct=0.0)),
        (20, GpuWindow(samples=5, util_pct=0.0, util_std_pct=0.0)),
    )
    assert gpu.util_std_pct == pytest.approx(50.0)
    alike = GpuWindow(samples=5, util_pct=60.0, util_std_pct=30.0)
    assert fold((20, alike), (20, alike)).util_std_pct == pytest.approx(30.0)


def test_a_reason_that_a_window_lacks_was_not_there_in_it():
    cap, heat = {'power_cap': 40.0}, {'power_cap': 20.0, 'thermal': 60.0}
    gpu = fold(
        (20, GpuWindow(samples=5, throttled_pct=40.0, throttle_reasons_pct=cap)),
        (20, GpuWindow(samples=5, throttled_pct=60.0, throttle_reasons_pct=heat)),
        (60, GpuWindow(samples=5)),
    )
    assert gpu.throttled_pct == pytest.approx(50.0)
    assert list(gpu.throttle_reasons_pct) == ['power_cap', 'thermal']
    assert gpu.throttle_reasons_pct['power_cap'] == pytest.approx(30.0)
    assert gpu.throttle_reasons_pct['thermal'] == pytest.approx(30.0)


def test_two_ways_of_measuring_are_said_to_be_mixed():
    gpu = fold(
        (20, GpuWindow(samples=5, source='buffer')),
        (20, GpuWindow(samples=5, source='polled')),
    )
    assert gpu.source == 'mixed'


def test_idling_is_weighted_by_the_iterations_timed():
    records = (
        make_interval(0, gpu_idle_pct=99.0, gpu_idle_iterations=20),
        make_interval(1, gpu_idle_pct=10.0, gpu_idle_iterations=30),
        make_interval(2, gpu_idle_pct=50.0, gpu_idle_iterations=10),
        make_interval(3),
    )
    summary = fold_run(RunEvidence('x', make_run(), records))
    assert summary.gpu_idle_pct == pytest.approx(20.0)
    assert summary.gpu_idle_iterations == 40


def test_idling_in_long_iterations_weighs_more():
    records = (
        make_interval(0),
        make_interval(1, step_s=0.9, gpu_idle_pct=80.0, gpu_idle_iterations=10),
        make_interval(2, step_s=0.4, gpu_idle_pct=10.0, gpu_idle_iterations=20),
    )
    summary = fold_run(RunEvidence('x', make_run(), records))
    # 10 iterations of 1 s beside 20 of 0.5 s
    assert summary.gpu_idle_pct == pytest.approx(45.0)


def cards_of(ranks_on_host: int, **run_fields: object) -> RunSummary:
    run = make_gpu_run(world_size=ranks_on_host, **run_fields)
    return fold_run(make_evidence(3, run=run, **make_gpu_fields('GPU-0', 'GPU-1')))


def test_cards_are_folded_by_uuid():
    cards = cards_of(2).cards
    assert list(cards) == ['GPU-0', 'GPU-1']
    assert cards['GPU-1'].index == 1
    assert cards['GPU-1'].samples == 120
    assert cards['GPU-1'].util_pct == pytest.approx(67.0)


def test_cards_are_compared_when_the_run_has_them_all():
    cards = cards_of(2).card_imbalance
    assert cards is not None
    assert (cards.cards, cards.samples) == (2, 240)
    assert (cards.util_min_pct, cards.util_max_pct) == pytest.approx((62.0, 67.0))
    # the other may be somebody else's, or nobody's
    assert cards_of(1).card_imbalance is None
    assert cards_of(2, device='cpu').card_imbalance is None


def test_the_slowest_clock_is_named_when_all_clocks_are_known():
    cards = {
        'a': CardWindow(index=0, samples=5, util_pct=90.0, sm_clock_mhz=1980.0),
        'b': CardWindow(index=1, samples=5, util_pct=95.0, sm_clock_mhz=1200.0),
        'c': CardWindow(index=2, samples=5, util_pct=92.0),
        'd': CardWindow(index=3, samples=5),
    }
    some = fold_imbalance(cards, {'a', 'b', 'd'})
    assert some is not None
    assert (some.cards, some.clock_min_mhz, some.slow_clock_index) == (2, 1200.0, 1)
    every = fold_imbalance(cards, set(cards))
    assert every is not None
    assert (every.cards, every.clock_min_mhz) == (3, None)
    assert fold_imbalance(cards, {'a'}) is None


def test_a_run_of_older_evidence_knows_the_old_figures():
    gpu = fold(
        (
            20,
            GpuWindow(
                samples=5,
                util_pct=60.0,
                zero_pct=10.0,
                util_std_pct=20.0,
                mem_used_bytes=7,
            ),
        )
    )
    assert (gpu.util_pct, gpu.zero_pct, gpu.mem_used_bytes) == (60.0, 10.0, 7)
    assert gpu.util_std_pct is not None
    assert math.isclose(gpu.util_std_pct, 20.0)
    assert gpu.power_w is None
    summary = fold_run(make_evidence(3))
    assert (summary.gpu_idle_pct, summary.cards, summary.card_imbalance) == (
        None,
        {},
        None,
    )
