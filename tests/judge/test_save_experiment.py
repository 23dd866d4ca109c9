from __future__ import annotations

import pytest

from fakes.replaced import replace
from fakes.runs import make_evidence, make_run
from fakes.save_bench import make_bench, make_row
from fakes.saves import LOADER, make_aftermath, make_contended, make_save
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.save_experiment import fold_save_row
from mmgpu_hooks.schema import SavePlan, SaveSetting, Trial

WIDE = (0.3, 0.4, 1.0, 1.0, 3.0, 4.0)

HARMFUL = {
    'the first that is longer': ([(0, 0.4), (2, 0.42), (8, 0.9), (16, 2.0)], 8),
    'twin: none is': ([(0, 0.4), (2, 0.42), (8, 0.41), (16, 0.43)], None),
    'all but the reference': ([(0, 0.4), (2, 0.9), (8, 0.9)], 2),
    'only the most': ([(0, 0.4), (2, 0.4), (8, 2.0)], 8),
    'one above it is harmless': ([(0, 0.4), (2, 0.9), (8, 0.4), (16, 0.9)], 16),
    'twin: the most is harmless': ([(0, 0.4), (8, 0.9), (16, 0.4)], None),
    'one between is unknown': ([(0, 0.4), (2, 0.9), (8, None), (16, 0.9)], 2),
    'the fewest are the reference': ([(4, 0.4), (8, 0.9)], 8),
    'twin: they failed, so the next are': ([(0, None), (4, 0.9), (8, 0.9)], None),
    'half as long again': ([(0, 1.0), (8, 1.55)], 8),
    'twin: less than that': ([(0, 1.0), (8, 1.45)], None),
    'a fifth of a second': ([(0, 0.1), (8, 0.31)], 8),
    'twin: less than that, though threefold': ([(0, 0.08), (8, 0.25)], None),
    'nothing to set against': ([(8, 0.9)], None),
    'nothing at all': ([], None),
}


@pytest.mark.parametrize('name', HARMFUL)
def test_the_smallest_harmful_number(name):
    rows, harmful = HARMFUL[name]
    bench = make_bench(*(make_row(workers, save_s) for workers, save_s in rows))
    assert bench.harmful_workers == harmful


def test_the_order_in_which_settings_are_trained_is_nothing_to_the_rule():
    bench = make_bench(make_row(16, 2.0), make_row(0, 0.4), make_row(8, 0.9))
    assert [row.setting.num_workers for row in bench.rows] == [0, 8, 16]
    assert bench.reference == SaveSetting(0)
    assert bench.harmful_workers == 8


def test_longer_saves_within_noise_are_not_called_harmful():
    bench = make_bench(make_row(0, 0.4, noise=WIDE), make_row(8, 0.7, noise=WIDE))
    row = bench.rows[1]
    assert row.chance > 0.05
    assert (row.is_harmful, row.remark) == (None, 'longer, but within noise')
    assert (bench.harmful_workers, bench.is_told) == (None, False)
    calm = make_bench(make_row(0, 0.4), make_row(8, 0.7))
    assert (calm.rows[1].chance, calm.harmful_workers) == (pytest.approx(1 / 924), 8)


def test_what_strangers_did_is_not_laid_at_the_workers_door():
    spoiled = make_bench(make_row(0, 0.4), make_row(8, 2.0, cause='strangers'))
    assert spoiled.rows[1].is_harmful is None
    assert spoiled.rows[1].remark == 'other programs held these saves up'
    assert not spoiled.is_told
    own = make_bench(make_row(0, 0.4), make_row(8, 2.0, cause='workers'))
    assert own.rows[1].is_harmful


def test_strangers_who_made_nothing_longer_spoil_nothing():
    bench = make_bench(make_row(0, 0.4), make_row(8, 0.41, cause='strangers'))
    assert bench.rows[1].is_harmful is False


@pytest.mark.parametrize(
    ('won_s', 'net_s'), [(0.0, 1.6), (0.5, 1.1), (9.0, 0.0), (None, None)]
)
def test_gross_and_net(won_s, net_s):
    bench = make_bench(make_row(0, 0.4), make_row(8, 2.0, won_s=won_s))
    row = bench.rows[1]
    assert row.gross_s == pytest.approx(1.6)
    assert row.net_s == (net_s if net_s is None else pytest.approx(net_s))


def test_a_shorter_save_has_lost_nothing():
    row = make_bench(make_row(0, 0.6), make_row(2, 0.5)).rows[1]
    assert row.gross_s == pytest.approx(-0.1)
    assert (row.net_s, row.is_harmful) == (0.0, False)


def test_polite_workers_are_judged_but_do_not_count():
    bench = make_bench(make_row(0, 0.4), make_row(8, 0.41), make_row(16, 2.0, nice=10))
    assert [row.is_harmful for row in bench.rows] == [None, False, True]
    assert bench.harmful_workers is None


def test_too_few_saves_are_no_reference_and_no_judgement():
    two = (0.9, 1.1)
    bench = make_bench(make_row(0, 0.4, noise=two), make_row(2, 0.4), make_row(8, 0.9))
    assert bench.reference == SaveSetting(2)
    assert bench.rows[0].remark == '2 save(s) are too few to tell'
    assert bench.harmful_workers == 8


def fold(saves, aftermaths=(), *, count=6, status='completed', error=None):
    evidence = replace(
        make_evidence(run=make_run(loader=LOADER)),
        save_records=tuple(saves),
        save_aftermaths=tuple(aftermaths),
    )
    result = Trial('trial', status, error, 30.0, 200)
    return fold_save_row(
        SavePlan(SaveSetting(8), count, 24, 184), result, Run(evidence)
    )


def test_the_first_save_is_left_out_and_the_rest_are_medians():
    cold = make_save(24, cpu_s=5.0)
    saves = [make_contended(24 * n, run_delay_s=0.15 * n) for n in range(2, 7)]
    row, won = fold(
        [cold, *saves], [make_aftermath(48, waits_s=0.3), make_aftermath(72)]
    )
    assert [save.iteration for save in row.saves] == [48, 72, 96, 120, 144]
    assert row.save_s == pytest.approx(1.0)
    assert (row.cpu_s, row.blocked_s) == (0.4, 0.0)
    assert row.run_delay_s == pytest.approx(0.6)
    assert row.workers_busy == 8.0
    assert row.bytes == 200 * 2**20
    assert (row.slow, row.cause) == (5, 'workers')
    # 16 usual waits of 0.05 s, less 0.3 s; what is unknown stays so
    assert won == (pytest.approx(0.5), 0.0, None, None, None)


def test_saves_beyond_the_plan_and_failed_ones_do_not_count():
    saves = [make_save(24 * n) for n in range(1, 7)]
    saves[2] = make_save(72, error='OSError')
    row, _ = fold(saves, count=4)
    assert [save.iteration for save in row.saves] == [48, 96, 120]


def test_a_training_cut_short_has_the_saves_until_then():
    saves = [make_save(24 * n) for n in range(1, 5)]
    row, _ = fold(saves, status='timed_out', error='killed after 60 s')
    assert (row.status, len(row.saves)) == ('timed_out', 3)
    assert row.save_s == pytest.approx(0.4)


def test_a_training_without_evidence_is_a_row_without_figures():
    result = Trial('trial', 'failed', 'TypeError: no', 3.0, 0)
    row, won = fold_save_row(SavePlan(SaveSetting(8), 6, 24, 184), result, None)
    assert (row.save_s, row.saves, won) == (None, (), ())
    bench = make_bench(make_row(0, 0.4), (row, won))
    assert bench.rows[1].remark == 'TypeError: no'
