from __future__ import annotations

import pytest

from fakes.replaced import replace
from fakes.runs import (
    add_to_end,
    make_evidence,
    make_gpu_run,
    make_interval,
    make_ranks,
)
from mmgpu_hooks.judge.ranks import (
    START_TOLERANCE_S,
    find_slowest,
    fold_ranks,
    with_saves_of,
)
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema import RanksSummary, RunEvidence


def compare(ranks: list[RunEvidence], *notes: str) -> RanksSummary:
    first, *others = map(Run, ranks)
    summary = fold_ranks(first, others, notes)
    assert summary is not None
    return summary


def with_parts(rank: RunEvidence, **seconds: float) -> RunEvidence:
    """The rank with more seconds per interval in some parts, out of its step."""
    taken_s = sum(seconds.values())
    intervals = []
    for record in rank.intervals:
        ledger = {**record.ledger_s, 'step': record.ledger_s['step'] - taken_s}
        for part, more in seconds.items():
            ledger[part] += more
        intervals.append(replace(record, ledger_s=ledger))
    return replace(rank, intervals=tuple(intervals))


def test_the_slowest_is_who_waits_for_data_and_not_who_steps_longest():
    summary = compare(make_ranks([0.006, 0.005, 0.006, 0.052]))
    assert (summary.slowest, summary.part) == (3, 'data_wait')
    assert summary.lost_s == pytest.approx(0.046)
    # 7 steady intervals of 20
    assert summary.iterations == 140
    assert (summary.first_iteration, summary.last_iteration) == (21, 160)
    steps = {row.rank: row.step_s for row in summary.rows}
    assert min(steps, key=steps.__getitem__) == 3
    assert summary.why == (
        'Rank 3 is the slowest and costs every rank 46.0 ms per iteration: it waits '
        'for data 52.0 ms, 46.0 ms more than the median of the 3 others (mean of 140 '
        'iterations).'
    )
    assert summary.notes == ()


@pytest.mark.parametrize(
    ('part', 'words'),
    [
        ('hooks', 'it is in hooks 50.0 ms'),
        ('checkpoint_save', 'it saves checkpoints 50.0 ms'),
        ('startup', 'it starts workers 50.0 ms'),
    ],
)
def test_the_reason_is_the_part_that_exceeds_the_others_most(part, words):
    ranks = make_ranks([0.02, 0.01, 0.01])
    ranks[0] = with_parts(ranks[0], **{part: 1.0})
    summary = compare(ranks)
    assert (summary.slowest, summary.part) == (0, part)
    assert summary.lost_s == pytest.approx(0.06)
    assert words in summary.why


def test_one_long_save_of_the_first_rank_is_no_noise():
    ranks = make_ranks([0.01, 0.01, 0.01])
    slow = with_parts(replace(ranks[0], intervals=ranks[0].intervals[4:5]))
    slow = with_parts(slow, checkpoint_save=4.0)
    intervals = (*ranks[0].intervals[:4], *slow.intervals, *ranks[0].intervals[5:])
    ranks[0] = replace(ranks[0], intervals=intervals)
    summary = compare(ranks)
    assert (summary.slowest, summary.part) == (0, 'checkpoint_save')
    assert summary.lost_s == pytest.approx(4.0 / 140)


def test_a_hook_that_waits_for_the_others_is_no_time_of_its_own():
    ranks = make_ranks([0.05, 0.01, 0.01])
    waiting = with_parts(ranks[1], hooks=2.0)
    ranks[1] = replace(
        waiting,
        intervals=tuple(
            replace(record, hooks_s={'SyncBuffersHook': 1.9, 'LoggerHook': 0.1})
            for record in waiting.intervals
        ),
    )
    summary = compare(ranks)
    assert summary.slowest == 0
    assert summary.rows[1].hooks_s == pytest.approx(0.1 / 20)


def test_ranks_that_differ_by_less_than_noise_have_no_slowest():
    summary = compare(make_ranks([0.010, 0.011, 0.0104]))
    assert (summary.slowest, summary.part, summary.lost_s) == (None, None, None)
    assert summary.noise_s == pytest.approx(0.003)
    assert '(rank 1) is 0.8 ms per iteration above the median' in summary.why
    assert 'within the noise of 3.0 ms (140 iterations)' in summary.why


def test_a_lead_that_comes_and_goes_is_noise():
    ranks = make_ranks([0.01, 0.01])
    swinging = tuple(
        make_interval(index, data_wait_s=wait_s, step_s=0.3 - wait_s)
        for index, wait_s in enumerate([0.01, 0.1, 0.0, 0.0, 0.1, 0.0, 0.0, 0.0])
    )
    ranks[1] = replace(ranks[1], intervals=swinging)
    summary = compare(ranks)
    assert summary.slowest is None
    assert summary.noise_s is not None
    assert summary.noise_s > 0.03


def test_ranks_that_do_not_wait_for_each_other_are_not_judged():
    ranks = make_ranks([0.01, 0.01])
    ranks[1] = make_evidence(run=make_gpu_run(1, 2), data_wait_s=0.2, step_s=0.29)
    summary = compare(ranks)
    assert summary.slowest is None
    assert 'do not wait for each other: 300.0 ms to 490.0 ms pass per' in summary.why


def test_a_wait_in_the_validation_of_the_others_is_in_step():
    # rank 0 saves, and the others wait for it where the validation begins
    ranks = make_ranks([0.01, 0.01, 0.01])
    for rank, part in enumerate(('checkpoint_save', 'validation', 'validation')):
        grown = [
            replace(
                record,
                ledger_s={**record.ledger_s, part: 2.0},
                duration_s=record.duration_s + 2.0,
            )
            for record in ranks[rank].intervals
        ]
        ranks[rank] = replace(ranks[rank], intervals=tuple(grown))
    summary = compare(ranks)
    assert (summary.slowest, summary.part) == (0, 'checkpoint_save')


def test_only_what_all_ranks_have_recorded_is_compared():
    ranks = make_ranks([0.01, 0.05, 0.01])
    ranks[1] = replace(ranks[1], intervals=ranks[1].intervals[:6], end=None)
    summary = compare(ranks)
    assert summary.slowest == 1
    assert (summary.iterations, summary.last_iteration) == (100, 120)
    assert [row.last_iteration for row in summary.rows] == [160, 120, 160]
    assert [row.is_over for row in summary.rows] == [True, False, True]
    assert summary.notes == (
        'Ranks are compared up to iteration 120 of 160: the files of rank 1 end there.',
    )


def test_too_few_intervals_in_common_tell_nothing():
    ranks = make_ranks([0.01, 0.2])
    ranks[1] = replace(ranks[1], intervals=ranks[1].intervals[:3])
    summary = compare(ranks)
    assert summary.slowest is None
    assert len(summary.rows) == 2
    assert '2 rank(s) have 2 interval(s) in common' in summary.why


def test_a_rank_that_recorded_nothing_leaves_the_others_to_be_compared():
    ranks = make_ranks([0.01, 0.05, 0.01])
    ranks[2] = replace(ranks[2], intervals=())
    summary = compare(ranks)
    assert summary.slowest == 1
    assert summary.notes == ('Rank 2 recorded no interval.',)


def test_missing_ranks_are_said():
    ranks = make_ranks([0.01, 0.01, 0.05, 0.01, 0.01, 0.01])
    del ranks[3:5]
    del ranks[1]
    summary = compare(ranks, 'and what was said before')
    assert summary.slowest == 2
    assert summary.notes == (
        'and what was said before',
        '3 of 6 ranks left evidence here; missing: 1, 3-4.',
    )


OTHER_RUNS = {
    'world_size': (4, 'world_size 4 instead of 2'),
    'max_iters': (99, 'max_iters 99 instead of 1200'),
    'start_iteration': (500, 'start_iteration 500 instead of 0'),
    'rank': (0, 'rank 0 is there already'),
    'started_unix_s': (
        1_700_000_001.0 + START_TOLERANCE_S,
        'it started 301 s apart',
    ),
}


@pytest.mark.parametrize('field', OTHER_RUNS)
def test_files_of_another_run_are_left_out_and_said(field):
    value, reason = OTHER_RUNS[field]
    first, other = make_ranks([0.01, 0.2])
    other = replace(other, path='old', run=replace(other.run, **{field: value}))
    summary = compare([first, other])
    assert summary.slowest is None
    assert f'old is of another run ({reason}).' in summary.notes


def test_a_run_of_one_rank_has_nothing_to_compare():
    assert fold_ranks(Run(make_evidence(3)), []) is None


def test_the_cards_that_the_ranks_train_on_are_compared():
    (cards,) = compare(make_ranks([0.01, 0.01, 0.01])).imbalance
    assert (cards.cards, cards.samples) == (3, 3 * 60 * 7)
    assert (cards.least_rank, cards.most_rank) == (0, 2)
    assert (cards.util_min_pct, cards.util_max_pct) == pytest.approx((62.0, 72.0))
    assert (cards.clock_min_mhz, cards.slow_clock_rank) == (1755.0, 0)


def test_the_slowest_is_found():
    ranks = [Run(rank) for rank in make_ranks([0.01, 0.09])]
    found = fold_ranks(ranks[0], ranks[1:])
    assert find_slowest(found, ranks) is ranks[1]
    alike = [Run(rank) for rank in make_ranks([0.01, 0.01])]
    assert find_slowest(fold_ranks(alike[0], alike[1:]), alike) is None
    assert find_slowest(None, alike) is None


def test_utilisation_is_compared_where_no_rank_saves():
    ranks = make_ranks([0.01, 0.01])
    saving = with_parts(ranks[0], checkpoint_save=1.0).intervals
    for rank, records in ((0, saving), (1, ranks[1].intervals)):
        gpu = records[5].gpu
        assert gpu is not None
        # one GPU idles in the save, the other spins in its wait for it
        while_saving = replace(records[5], gpu=replace(gpu, util_pct=100.0 * rank))
        kept = ranks[rank].intervals
        intervals = (*kept[:5], while_saving, *kept[6:])
        ranks[rank] = replace(ranks[rank], intervals=intervals)
    assert [row.gpu_util_pct for row in compare(ranks).rows] == [62.0, 67.0]


def test_findings_about_saves_come_from_the_rank_that_makes_them():
    first, slowest = make_ranks([0.01, 0.09])
    assert first.end is not None
    first = add_to_end(first, checkpoint_save=12.0, step=-12.0)
    first = replace(first, end=replace(first.end, saves=3))
    saver, judged = Run(first), Run(slowest)
    merged = with_saves_of(judged, saver)
    assert (merged.saves, merged.ledger_s['checkpoint_save']) == (3, 12.0)
    assert sum(merged.ledger_s.values()) == pytest.approx(judged.duration_s)
    assert merged.data_wait_s == judged.data_wait_s


def test_a_rank_that_saves_too_keeps_its_own():
    ranks = [Run(rank) for rank in make_ranks([0.01, 0.09])]
    assert with_saves_of(ranks[1], ranks[0]) is ranks[1]
    both = ranks[1].altered(saves=2)
    assert with_saves_of(both, ranks[0].altered(saves=3)) is both
    # no more can be moved than the steps took
    most = ranks[0].altered(saves=3, ledger_s={'checkpoint_save': 1e9})
    assert with_saves_of(ranks[1], most).ledger_s['step'] == 0.0
