"""Tests which loader changes are proposed to a training, and when none is."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.replaced import replace
from fakes.runs import make_evidence, make_inside_workers, make_loader, make_run
from fakes.tuning import settings
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.recommend.pairs import pair_settings
from mmgpu_hooks.recommend.recommendation import recommend_settings
from mmgpu_hooks.recommend.tuning import (
    LEAST_GAIN,
    SPARE_PREFETCH,
    TRIED_GAIN,
    answer_question,
)
from mmgpu_hooks.schema.recorded import MemoryRecord, TunedRecord
from mmgpu_hooks.schema.run import RunEvidence
from mmgpu_hooks.schema.tuning import TuneQuestion

LONG = TuneQuestion(iterations_left=10_000)
NONE = settings(0)


def starved(**fields: Any) -> RunEvidence:
    """Returns a run without workers; a batch takes 0.3 s to load, 0.1 s on the GPU."""
    loader = make_loader(0, persistent_workers=False, prefetch_factor=None)
    given: dict[str, Any] = {
        'intervals': 6,
        'run': make_run(loader=loader, device='cuda'),
        'data_wait_s': 0.3,
        'data_wait_cpu_s': 20 * 0.25,
        'step_s': 0.1,
        'process_cpu_s': 20 * 0.3,
        'workers': make_inside_workers(0.3, count=0, cpu_s=0.0),
        **fields,
    }
    return replace(make_evidence(**given), end=None)


def at_hand(**fields: Any) -> RunEvidence:
    """Returns a run with two workers whose batches are always ready."""
    given: dict[str, Any] = {
        'intervals': 12,
        'run': make_run(device='cuda'),
        'data_wait_s': 0.001,
        'step_s': 0.4,
        'process_cpu_s': 20 * 0.3,
        'workers': make_inside_workers(0.2),
        **fields,
    }
    return replace(make_evidence(**given), end=None)


def test_a_starved_training_is_given_workers_in_one_jump():
    answer = answer_question(Run(starved()), LONG)
    assert answer.proposed is not None
    record = answer.proposed
    assert (record.action, record.reason, record.old) == ('change', 'predicted', NONE)
    assert record.new.num_workers >= 3
    assert record.new.persistent_workers
    assert record.gain_low_pct is not None
    assert record.gain_low_pct >= 100 * LEAST_GAIN
    assert record.predicted_iter_s < 0.5 * record.iter_s
    assert answer.cost_s > 0


@pytest.mark.parametrize(
    ('free_mib', 'ahead'),
    [(2**14, SPARE_PREFETCH), (6 * 2 * 64, None)],
    ids=['much shared memory', 'so much as workers need'],
)
def test_more_workers_make_more_batches_ahead_where_the_host_has_room(free_mib, ahead):
    host = replace(make_run().host, shm_free_bytes=free_mib * 2**20, usable_cores=8.0)
    loader = make_loader(0, persistent_workers=False, prefetch_factor=None)
    run = make_run(loader=loader, device='cuda', host=host)
    answer = answer_question(Run(starved(run=run, batch_bytes=64 * 2**20)), LONG)
    assert answer.proposed is not None
    assert answer.proposed.new.num_workers >= 3
    assert answer.proposed.new.prefetch_factor == ahead


def waits_a_little(wait_s: float, **fields: Any) -> RunEvidence:
    """Returns a run without workers that waits the given seconds for each batch."""
    return starved(
        data_wait_s=wait_s,
        data_wait_cpu_s=20 * wait_s,
        process_cpu_s=20 * (wait_s + 0.05),
        workers=make_inside_workers(wait_s, count=0, cpu_s=0.0),
        **fields,
    )


def test_a_likely_gain_is_tried_where_only_the_model_is_in_doubt():
    answer = answer_question(Run(waits_a_little(0.014)), LONG)
    assert answer.proposed is not None
    record = answer.proposed
    assert record.new.num_workers >= 1
    assert record.gain_low_pct is not None
    assert record.gain_low_pct < 100 * LEAST_GAIN
    assert record.gain_pct is not None
    assert record.gain_pct >= 100 * TRIED_GAIN


def test_workers_that_share_the_core_of_the_training_are_tried():
    """Tests that what a recommendation does not take without a large gain is tried."""
    host = replace(make_run().host, usable_cores=2.0)
    run = make_run(loader=make_loader(1), host=host, device='cpu')
    busy = starved(
        run=run,
        data_wait_s=0.05,
        data_wait_cpu_s=0.02,
        step_s=0.22,
        process_cpu_s=20 * 0.22,
        workers=make_inside_workers(0.26, count=1, std_s=0.02),
    )
    assert recommend_settings(Run(busy)).changes == ()
    answer = answer_question(Run(busy), LONG)
    assert answer.proposed is not None
    assert answer.proposed.new.num_workers == 2


@pytest.mark.parametrize(
    ('evidence', 'left'),
    [
        (waits_a_little(0.005), 10_000),
        (waits_a_little(0.014), 60),
    ],
    ids=['a small gain', 'there and back takes what it gives'],
)
def test_nothing_is_tried_where_that_cannot_pay(evidence, left):
    question = replace(LONG, iterations_left=left)
    answer = answer_question(Run(evidence), question)
    assert answer.proposed is None
    assert answer.why


def test_workers_do_not_begin_to_live_on_where_a_hook_may_need_them_anew():
    question = replace(LONG, may_persist=False)
    answer = answer_question(Run(starved()), question)
    assert answer.proposed is not None
    assert not answer.proposed.new.persistent_workers


@pytest.mark.parametrize(
    ('evidence', 'question', 'said'),
    [
        (at_hand(), LONG, 'no other setting'),
        (starved(), replace(LONG, iterations_left=2), 'too short'),
        (starved(), replace(LONG, can_change=False), 'nothing is left'),
        (starved(intervals=2), LONG, 'too few intervals'),
    ],
    ids=['data is at hand', 'little is left', 'only to judge', 'short evidence'],
)
def test_nothing_is_changed_where_it_does_not_pay(evidence, question, said):
    answer = answer_question(Run(evidence), question)
    assert answer.proposed is None
    assert answer.judged is None
    assert answer.why
    assert said in answer.why


def test_memory_that_was_nearly_full_gets_no_more_workers():
    low = MemoryRecord(
        phase='train',
        elapsed_s=10.0,
        bound='host',
        total_bytes=8 * 2**30,
        used_bytes=8 * 2**30 - 1,
        is_low=True,
    )
    answer = answer_question(Run(replace(starved(), memory=(low,))), LONG)
    assert answer.proposed is None


def test_a_change_is_judged_and_not_followed_by_another_one():
    evidence = starved()
    new = settings(4, prefetch_factor=2)
    change = TunedRecord(
        iteration=120, action='change', reason='predicted', old=NONE, new=new
    )
    answer = answer_question(Run(replace(evidence, tuned=(change,))), LONG)
    assert answer.proposed is None
    assert answer.why == 'too few iterations since the change'


def test_a_change_that_the_slowest_rank_could_not_make_is_judged_all_the_same():
    evidence = starved(intervals=24)
    new = settings(4, prefetch_factor=2)
    change = TunedRecord(
        iteration=120, action='change', reason='predicted', old=NONE, new=new
    )
    asking = Run(replace(evidence, tuned=(change,)))
    answer = answer_question(Run(evidence), LONG, asking=asking)
    assert answer.proposed is None
    # it gave nothing, as that rank holds all up
    assert answer.judged is not None
    assert (answer.judged.action, answer.judged.old) == ('keep', new)


def tuned_run(**fields: Any) -> Run:
    """Returns a run that was tuned from no workers to four, which suffice."""
    new = settings(4, prefetch_factor=2, persistent_workers=True)
    change = TunedRecord(
        iteration=120,
        action='change',
        reason='predicted',
        old=NONE,
        new=replace(new, **fields),
    )
    keep = replace(
        change,
        iteration=280,
        action='keep',
        reason='gain',
        old=change.new,
        iter_s=0.4,
        measured_iter_s=0.101,
    )
    later = make_evidence(
        intervals=20,
        data_wait_s=0.001,
        step_s=0.1,
        workers=make_inside_workers(0.1, count=4),
    )
    first = starved()
    intervals = (*first.intervals, *later.intervals[6:])
    return Run(replace(first, intervals=intervals, tuned=(change, keep)))


def test_the_next_run_is_recommended_what_this_one_ended_with():
    run = tuned_run()
    changes = {change.key: change for change in recommend_settings(run).changes}
    workers = changes['train_dataloader.num_workers']
    assert (workers.old, workers.new) == (0, 4)
    assert workers.confidence == 'high'
    assert 'took 0.400 s before it and 0.101 s with it' in workers.reason
    assert changes['train_dataloader.persistent_workers'].new is True
    pair = pair_settings(run, recommend_settings(run))
    assert pair is not None
    assert pair.before['train_dataloader.num_workers'] == 0
    assert pair.after['train_dataloader.num_workers'] == 4


def test_niceness_and_threads_that_were_found_are_recommended_too():
    run = tuned_run(worker_nice=10, opencv_num_threads=0)
    changes = {change.key: change.new for change in recommend_settings(run).changes}
    assert changes['default_hooks.gpu_efficiency.worker_nice'] == 10
    assert changes['env_cfg.mp_cfg.opencv_num_threads'] == 0
