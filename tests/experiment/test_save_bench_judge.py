"""Tests judging checkpoint saves by number of loader workers, on synthetic times."""

from __future__ import annotations

import pytest

from fakes.replaced import replace
from fakes.runs import make_evidence, make_run
from fakes.save_bench import make_bench, make_row
from fakes.saves import LOADER, make_after_save, make_contended, make_save
from mmgpu_hooks.experiment.save_bench_judge import summarize_saves
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema.text import quoted
from mmgpu_hooks.schema.tried import Trial

WIDE = (0.3, 0.4, 1.0, 1.0, 3.0, 4.0)

HARMFUL = {
    'the first that is longer': ([(0, 0.4), (2, 0.42), (8, 0.9), (16, 2.0)], 8),
    'one above it is harmless': ([(0, 0.4), (2, 0.9), (8, 0.4), (16, 0.9)], 16),
    'twin: the most is harmless': ([(0, 0.4), (8, 0.9), (16, 0.4)], None),
    'one between is unknown': ([(0, 0.4), (2, 0.9), (8, None), (16, 0.9)], 2),
    'twin: they failed, so the next are': ([(0, None), (4, 0.9), (8, 0.9)], None),
    'half as long again': ([(0, 1.0), (8, 1.55)], 8),
    'twin: less than that': ([(0, 1.0), (8, 1.45)], None),
    'a fifth of a second': ([(0, 0.1), (8, 0.31)], 8),
    'twin: less than that, though threefold': ([(0, 0.08), (8, 0.25)], None),
    'nothing to compare with': ([(8, 0.9)], None),
}


@pytest.mark.parametrize('name', HARMFUL)
def test_the_smallest_harmful_number_of_workers_is_found(name):
    rows, harmful = HARMFUL[name]
    bench = make_bench(*(make_row(workers, save_s) for workers, save_s in rows))
    assert bench.harmful_workers == harmful
    workers = [row.num_workers for row in bench.rows]
    assert workers == sorted(workers)


@pytest.mark.parametrize(
    ('save_s', 'fields', 'is_harmful', 'remark'),
    [
        (0.7, {}, True, None),
        (0.7, {'noise': WIDE}, None, 'longer, but within noise'),
        (2.0, {'cause': 'workers'}, True, None),
        (2.0, {'cause': 'other_load'}, None, 'other programs held these saves up'),
        (0.41, {'cause': 'other_load'}, False, None),
    ],
)
def test_only_what_is_beyond_noise_and_of_no_other_program_is_harmful(
    save_s, fields, is_harmful, remark
):
    noise = {name: value for name, value in fields.items() if name == 'noise'}
    bench = make_bench(make_row(0, 0.4, **noise), make_row(8, save_s, **fields))
    assert (bench.rows[1].is_harmful, bench.rows[1].remark) == (is_harmful, remark)
    assert bench.harmful_workers == (8 if is_harmful else None)


@pytest.mark.parametrize(
    ('save_s', 'won_s', 'gross_s', 'net_s'),
    [(2.0, 0.5, 1.6, 1.1), (2.0, None, 1.6, None), (0.3, 0.0, -0.1, 0.0)],
)
def test_net_delay_is_gross_delay_minus_time_won_back(save_s, won_s, gross_s, net_s):
    row = make_bench(make_row(0, 0.4), make_row(8, save_s, won_s=won_s)).rows[1]
    assert row.gross_s == pytest.approx(gross_s)
    assert row.net_s == (net_s if net_s is None else pytest.approx(net_s))


def test_too_few_saves_are_no_reference_and_no_judgement():
    two = (0.9, 1.1)
    bench = make_bench(make_row(0, 0.4, noise=two), make_row(2, 0.4), make_row(8, 0.9))
    assert bench.reference == 2
    assert bench.rows[0].remark == 'too few to tell by: 2 saves'
    assert bench.harmful_workers == 8


def row_of(saves, after_saves=()):
    evidence = replace(
        make_evidence(run=make_run(loader=LOADER)),
        save_records=tuple(saves),
        after_saves=tuple(after_saves),
    )
    result = Trial('trial', 'completed', None, 30.0, 200)
    return summarize_saves(8, 6, result, Run(evidence))


def test_the_first_save_is_left_out_and_the_rest_are_medians():
    cold = make_save(24, cpu_s=5.0)
    saves = [make_contended(24 * n, run_delay_s=0.15 * n) for n in range(2, 7)]
    after = [make_after_save(48, waits_s=0.3), make_after_save(72)]
    row = row_of([cold, *saves], after)
    assert [save.iteration for save in row.saves] == [48, 72, 96, 120, 144]
    assert (row.save_s, row.run_delay_s) == pytest.approx((1.0, 0.6))
    assert (row.cpu_s, row.blocked_s) == (0.4, 0.0)
    assert (row.slow, row.cause) == (5, 'workers')
    # 16 usual waits of 0.05 s, less 0.3 s; what is unknown stays so
    assert row.won_s == (pytest.approx(0.5), 0.0, None, None, None)


def test_a_training_without_evidence_is_a_row_without_figures():
    result = Trial('trial', 'failed', quoted('TypeError: no'), 3.0, 0)
    row = summarize_saves(8, 6, result, None)
    assert (row.save_s, row.saves, row.won_s) == (None, (), ())
    bench = make_bench(make_row(0, 0.4), row)
    assert bench.rows[1].remark == 'TypeError: no'
