"""Tests finding the rank that the others wait for, with synthetic ranks."""

from __future__ import annotations

import pytest

from fakes.replaced import replace
from fakes.runs import make_evidence, make_gpu_run, make_interval, make_ranks, make_run
from mmgpu_hooks.judge.ranks import START_TOLERANCE_S, compare_ranks
from mmgpu_hooks.judge.rules.training import judge_shards
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema.run import RanksSummary, RunEvidence


def compare(ranks: list[RunEvidence], *notes: str) -> RanksSummary:
    first, *others = map(Run, ranks)
    summary = compare_ranks(first, others, notes)
    assert summary is not None
    return summary


def with_parts(rank: RunEvidence, only: int | None = None, **seconds: float):
    """Returns a rank with time moved from ``step`` to other time ledger parts."""
    intervals = []
    for index, record in enumerate(rank.intervals):
        ledger = dict(record.ledger_s)
        for part, more in seconds.items():
            if only in (None, index):
                ledger[part] += more
                ledger['step'] -= more
        intervals.append(replace(record, ledger_s=ledger))
    return replace(rank, intervals=tuple(intervals))


@pytest.mark.parametrize(
    ('part', 'seconds', 'only', 'lost_s'),
    [
        ('hooks', 1.0, None, 0.06),
        ('checkpoint_save', 1.0, None, 0.06),
        ('startup', 1.0, None, 0.06),
        # one long save of the first rank is no noise
        ('checkpoint_save', 4.0, 4, 4.0 / 140 + 0.01),
    ],
)
def test_the_reason_is_the_part_that_exceeds_the_others_most(
    part, seconds, only, lost_s
):
    ranks = make_ranks([0.02, 0.01, 0.01])
    ranks[0] = with_parts(ranks[0], only, **{part: seconds})
    summary = compare(ranks)
    assert (summary.slowest, summary.part) == (0, part)
    assert summary.lost_s == pytest.approx(lost_s)


def test_a_hook_that_waits_for_the_others_is_no_time_of_its_own():
    ranks = make_ranks([0.05, 0.01, 0.01])
    waiting = with_parts(ranks[1], hooks=2.0)
    hooks_s = {'SyncBuffersHook': 1.9, 'LoggerHook': 0.1}
    intervals = [replace(record, hooks_s=hooks_s) for record in waiting.intervals]
    ranks[1] = replace(waiting, intervals=tuple(intervals))
    summary = compare(ranks)
    assert summary.slowest == 0
    assert summary.rows[1].hooks_s == pytest.approx(0.1 / 20)


def test_ranks_that_differ_by_less_than_noise_have_no_slowest():
    summary = compare(make_ranks([0.010, 0.011, 0.0104]))
    assert (summary.slowest, summary.part, summary.lost_s) == (None, None, None)
    assert summary.noise_s == pytest.approx(0.003)
    assert 'is 800 us per iteration above the median' in summary.why
    # a lead that comes and goes
    ranks = make_ranks([0.01, 0.01])
    swinging = tuple(
        make_interval(index, data_wait_s=wait_s, step_s=0.3 - wait_s)
        for index, wait_s in enumerate([0.01, 0.1, 0.0, 0.0, 0.1, 0.0, 0.0, 0.0])
    )
    ranks[1] = replace(ranks[1], intervals=swinging)
    summary = compare(ranks)
    assert (summary.slowest, summary.noise_s > 0.03) == (None, True)


def test_ranks_that_do_not_wait_for_each_other_are_not_judged():
    ranks = make_ranks([0.01, 0.01])
    ranks[1] = make_evidence(run=make_gpu_run(1, 2), data_wait_s=0.2, step_s=0.29)
    summary = compare(ranks)
    assert summary.slowest is None
    assert 'do not wait for each other: 0.300 s to 0.490 s' in summary.why


@pytest.mark.parametrize(
    ('kept', 'slowest', 'iterations', 'said'),
    [
        (6, 1, 100, 'up to iteration 120 of 160'),
        (3, None, 40, 'up to iteration 60 of 160'),
        (0, 2, 140, 'Rank 1 recorded no interval'),
    ],
)
def test_only_what_all_ranks_have_recorded_is_compared(kept, slowest, iterations, said):
    ranks = make_ranks([0.01, 0.09, 0.05])
    ranks[1] = replace(ranks[1], intervals=ranks[1].intervals[:kept], end=None)
    summary = compare(ranks)
    assert (summary.slowest, summary.iterations) == (slowest, iterations)
    assert said in summary.notes[0]


def test_missing_ranks_are_said():
    ranks = make_ranks([0.01, 0.01, 0.05, 0.01])
    summary = compare([ranks[0], ranks[2]], 'what was said before')
    assert summary.slowest == 2
    assert summary.notes[0] == 'what was said before'
    assert '2 of 4 ranks left evidence here; missing: 1, 3.' in summary.notes[1]


@pytest.mark.parametrize(
    ('field', 'value'),
    [
        ('world_size', 4),
        ('max_epochs', 99),
        ('start_iteration', 500),
        ('rank', 0),
        ('started_unix_s', 1_700_000_001.0 + START_TOLERANCE_S),
    ],
)
def test_files_of_another_run_are_left_out_and_said(field, value):
    first, other = make_ranks([0.01, 0.2])
    other = replace(other, path='old', run=replace(other.run, **{field: value}))
    summary = compare([first, other])
    assert summary.slowest is None
    assert 'old is of another run' in summary.notes[0]


def test_ranks_with_another_number_of_batches_are_a_finding():
    runs = []
    for rank, batches in enumerate((119, 119, 118)):
        run = make_run(rank=rank, world_size=3, loop='epoch')
        loader = replace(run.loader, batches_per_epoch=batches)
        runs.append(Run(make_evidence(run=replace(run, loader=loader))))
    even, _, short = runs
    even.other_ranks = [runs[1]]
    assert judge_shards(even) is None
    even.other_ranks = [runs[1], short]
    finding = judge_shards(even)
    assert finding is not None and finding.severity == 'notice'
    expected = 'ranks 0, 1: 119 batches an epoch; rank 2: 118 batches an epoch.'
    assert finding.detail == expected
