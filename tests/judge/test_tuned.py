"""Tests the judging of loader changes that were made during training."""

from __future__ import annotations

import random
from typing import Any

import pytest

from fakes.replaced import replace
from fakes.runs import (
    make_evidence,
    make_inside_workers,
    make_interval,
    make_loader,
    make_run,
    steady,
)
from fakes.tuning import settings
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.tuned import judge_change, select_stage
from mmgpu_hooks.schema.recorded import TunedRecord
from mmgpu_hooks.schema.run import RunEvidence

NONE, FOUR = settings(0), settings(4, prefetch_factor=2)


def change_at(iteration: int, old: Any = NONE, new: Any = FOUR) -> TunedRecord:
    return TunedRecord(
        iteration=iteration, action='change', reason='predicted', old=old, new=new
    )


def make_tuned(
    after: int = 12,
    *,
    before: int = 6,
    wait_s: float = 0.02,
    step_s: float = 0.2,
    noise: float = 0.01,
    system_pct: float = 10.0,
    device: str = 'cpu',
) -> RunEvidence:
    """Returns a run that was tuned from 0 workers to four during training.

    Args:
        after: Intervals of 20 iterations with four.
        before: With none.
        wait_s: With four workers, per iteration, as the step after it.
        step_s: Likewise.
        noise: Relative spread of an interval.
        system_pct: Busy share of the host's CPUs with four.
        device: That trains.
    """
    rng = random.Random(3)
    run = make_run(
        loader=make_loader(0, persistent_workers=False, prefetch_factor=None),
        device=device,
    )
    intervals = []
    for index in range(before + after):
        is_after = index >= before
        each = rng.gauss(1.0, noise)
        interval = make_interval(
            index,
            data_wait_s=(wait_s if is_after else 0.3) * each,
            step_s=(step_s if is_after else 0.2) * each,
            system_cpu_pct=system_pct if is_after else 10.0,
        )
        if is_after:
            workers = make_inside_workers(0.3, count=4, cpu_s=0.0)
            interval = replace(interval, workers=workers)
        intervals.append(interval)
    evidence = replace(make_evidence(run=run), intervals=tuple(intervals), end=None)
    return replace(evidence, tuned=(change_at(20 * before),))


def test_a_tuned_run_is_judged_by_what_it_ended_with():
    run = Run(make_tuned())
    assert run.meta.loader.num_workers == 4
    assert run.begun_with == NONE
    assert run.figures.per_iteration.data_wait_s == pytest.approx(0.02, rel=0.05)
    # all of it counts for the time that it took
    assert run.figures.iterations == 18 * 20
    assert run.figures.ledger_s['data_wait'] > 6 * 20 * 0.28


def test_batches_that_old_workers_owed_are_none_of_the_new_ones():
    evidence = make_tuned()
    old = settings(16, prefetch_factor=2)
    run = Run(replace(evidence, tuned=(change_at(120, old=old),)))
    # 32 batches, two intervals, and the first one after them
    assert run.figures.steady_iterations == (12 - 2 - 1) * 20


def test_a_run_without_a_change_is_what_it_was():
    evidence = replace(make_tuned(), tuned=())
    run = Run(evidence)
    assert run.meta is evidence.run
    assert len(run.latest) == len(run.every) == len(run.steady) + 1


def test_stages_have_the_settings_that_they_trained_with():
    evidence = make_tuned()
    back = replace(
        change_at(240, old=FOUR, new=NONE), action='roll_back', reason='loss'
    )
    evidence = replace(evidence, tuned=(*evidence.tuned, back))
    stages = [Run(select_stage(evidence, number)) for number in range(3)]
    assert [stage.meta.loader.num_workers for stage in stages] == [0, 4, 0]
    assert [stage.figures.iterations for stage in stages] == [120, 120, 120]


@pytest.mark.parametrize(
    ('given', 'reason', 'is_kept'),
    [
        ({}, 'gain', True),
        ({'after': 5}, 'gain', True),
        ({'wait_s': 0.6}, 'loss', False),
        ({'wait_s': 0.6, 'after': 5}, 'loss', False),
        ({'wait_s': 0.3}, 'unclear', True),
        ({'wait_s': 0.312, 'noise': 0.03}, 'unclear', False),
        ({'wait_s': 0.6, 'system_pct': 60.0}, 'other_load', True),
        # the step of a card is another one: the waits alone tell
        ({'step_s': 0.6, 'device': 'cuda'}, 'gain', True),
        ({'step_s': 0.6}, 'loss', False),
    ],
    ids=[
        'gain',
        'gain, soon',
        'loss',
        'loss, soon',
        'as before',
        'a little slower',
        'other programs',
        'other step on a card',
        'slower step on the CPU',
    ],
)
def test_a_change_is_judged_by_what_it_gave(given, reason, is_kept):
    verdict = judge_change(make_tuned(**given))
    assert verdict is not None
    assert (verdict.reason, verdict.is_kept) == (reason, is_kept)


@pytest.mark.parametrize(
    ('wait_s', 'is_kept'),
    [(0.296, True), (0.303, False)],
    ids=['a little faster', 'a little slower'],
)
def test_what_was_only_tried_stays_where_an_iteration_became_shorter(wait_s, is_kept):
    evidence = make_tuned(wait_s=wait_s, noise=0.001)
    tried = replace(evidence.tuned[0], gain_low_pct=-3.0)
    verdict = judge_change(replace(evidence, tuned=(tried,)))
    assert verdict is not None
    assert verdict.is_kept is is_kept
    # a change that was sure is not taken back for less than 1 %
    surely = replace(evidence.tuned[0], gain_low_pct=5.0)
    verdict = judge_change(replace(evidence, tuned=(surely,)))
    assert verdict is not None
    assert verdict.is_kept


@pytest.mark.parametrize(
    'given',
    [{'after': 2}, {'after': 5, 'wait_s': 0.3}, {'after': 6, 'system_pct': 60.0}],
    ids=['short', 'unclear yet', 'other programs may go'],
)
def test_a_change_without_enough_evidence_is_not_judged_yet(given):
    assert judge_change(make_tuned(**given)) is None


def test_a_gain_has_an_interval_that_holds_it():
    verdict = judge_change(make_tuned())
    assert verdict is not None
    assert verdict.gain is not None
    assert verdict.gain.low < 1 - 0.22 / 0.5 < verdict.gain.high
    assert verdict.gain.half_width < 0.1


def test_first_waits_of_epochs_are_no_part_of_an_iteration():
    evidence = make_tuned()
    first, *others = evidence.intervals[8:]
    late = replace(
        first,
        first_waits=1,
        first_wait_s=5.0,
        data_wait=steady(first.data_wait.mean_s + 5.0 / 20, 20),
        iter=steady(first.iter.mean_s + 5.0 / 20, 20),
    )
    intervals = (*evidence.intervals[:8], late, *others)
    verdict = judge_change(replace(evidence, intervals=intervals))
    assert verdict is not None
    assert verdict.after_s == pytest.approx(0.22, rel=0.02)


@pytest.mark.parametrize('before', [2, 3, 6])
@pytest.mark.parametrize(('wait_s', 'reason'), [(0.02, 'gain'), (0.6, 'loss')])
def test_few_intervals_before_a_change_are_enough(before, wait_s, reason):
    evidence = make_tuned(after=5, before=before, wait_s=wait_s, noise=0.05)
    verdict = judge_change(evidence)
    assert verdict is not None
    assert verdict.reason == reason


def test_a_noisy_host_does_not_refute_what_was_predicted():
    evidence = make_tuned(wait_s=0.36, noise=0.25)
    change = replace(evidence.tuned[0], gain_low_pct=5.0)
    verdict = judge_change(replace(evidence, tuned=(change,)))
    assert verdict is not None
    assert verdict.reason == 'unclear'
    assert verdict.after_s > verdict.before_s
    assert verdict.is_kept
    change = replace(change, gain_low_pct=60.0)
    verdict = judge_change(replace(evidence, tuned=(change,)))
    assert verdict is not None
    assert not verdict.is_kept


@pytest.mark.parametrize('has_made', [True, False])
@pytest.mark.parametrize(
    ('system_pct', 'reason'), [(20.0, 'gain'), (60.0, 'other_load')]
)
def test_other_load_is_seen_where_several_ranks_share_a_host(
    system_pct, reason, has_made
):
    ranks = []
    for rank in (0, 1):
        evidence = make_tuned(system_pct=system_pct)
        host = replace(evidence.run.host, ranks_on_host=2)
        run = replace(evidence.run, rank=rank, world_size=2, host=host)
        ranks.append(replace(evidence, run=run))
    first, other = ranks
    if not has_made:
        other = replace(other, tuned=())
    verdict = judge_change(first, [Run(other)])
    assert verdict is not None
    assert verdict.reason == reason
    alone = judge_change(first)
    assert alone is not None
    assert alone.reason == 'gain'


@pytest.mark.parametrize(('wait_s', 'reason'), [(0.02, 'gain'), (0.6, 'loss')])
def test_workers_of_other_ranks_are_no_other_load(wait_s, reason):
    ranks = []
    for rank in (0, 1):
        # a batch costs its worker what takes it two of eight cores
        busy_s = 2.0 * (wait_s + 0.2)
        evidence = make_tuned(system_pct=60.0, wait_s=wait_s)
        workers = make_inside_workers(busy_s, count=4, cpu_s=20 * busy_s)
        intervals = tuple(
            interval
            if interval.iteration <= 120
            else replace(interval, workers=workers)
            for interval in evidence.intervals
        )
        host = replace(evidence.run.host, ranks_on_host=2)
        run = replace(evidence.run, rank=rank, world_size=2, host=host)
        ranks.append(replace(evidence, run=run, intervals=intervals))
    first, other = ranks
    verdict = judge_change(first, [Run(other)])
    assert verdict is not None
    assert verdict.reason == reason
