from __future__ import annotations

import pytest

from fakes.replaced import replace
from fakes.runs import make_evidence, make_interval, make_run, make_workers
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema import LoaderSettings, RunEvidence


def evidence_of(*intervals, **fields) -> RunEvidence:
    return RunEvidence(path='x', run=make_run(), intervals=intervals, **fields)


def test_the_first_interval_is_warm_up():
    slow = make_interval(0, data_wait_s=5.0, step_s=5.0)
    summary = Run(evidence_of(slow, make_interval(1), make_interval(2)))
    assert summary.steady_iterations == 40
    assert summary.iterations == 60
    assert summary.data_wait_s == pytest.approx(0.1)
    assert summary.step_s == pytest.approx(0.2)
    assert summary.images_per_s == pytest.approx(4 / 0.3)


def test_a_single_interval_is_used_for_want_of_others():
    assert Run(evidence_of(make_interval())).steady_iterations == 20


def test_first_waits_are_start_up_and_no_wait():
    first = make_interval(1)
    first = replace(
        first,
        data_wait=replace(first.data_wait, total_s=1.9 + 4.0),
        first_waits=1,
        first_wait_s=4.0,
        ledger_s={**first.ledger_s, 'startup': 3.9 + 0.25},
    )
    summary = Run(evidence_of(make_interval(0), first))
    assert summary.data_wait_s == pytest.approx(0.1)
    # creating the workers, outside any wait, is in it
    assert summary.startup_s == pytest.approx(4.15)
    assert summary.epoch_starts == 1


def test_without_an_end_record_the_run_was_killed():
    summary = Run(evidence_of(make_interval(0), make_interval(1)))
    assert summary.status == 'killed'
    assert summary.duration_s == pytest.approx(12.0)
    assert summary.ledger_s['step'] == pytest.approx(8.0)


def test_worker_cpu_is_per_batch_over_the_whole_run():
    # 2 workers x 2 prefetched were under way at the start: half of them count as made
    started = replace(make_workers(0.0), cpu_s=0.3 * 22, fresh=True)
    later = make_workers(0.3, run_delay_s=0.042)
    summary = Run(
        evidence_of(make_interval(0, workers=started), make_interval(1, workers=later))
    )
    assert summary.worker_cpu_s == pytest.approx(0.3)
    assert summary.worker_run_delay_s == pytest.approx(0.02)
    assert summary.worker_count == 2


def test_an_epoch_made_ahead_in_its_first_interval_is_counted_once():
    made = replace(make_workers(0.0, count=16, iterations=10), cpu_s=3.0, fresh=True)
    idle = make_workers(0.0, count=16, iterations=20)
    loader = LoaderSettings(
        num_workers=16,
        persistent_workers=True,
        prefetch_factor=2,
        pin_memory=False,
        batch_size=4,
        batches_per_epoch=30,
        dataset_length=120,
    )
    evidence = evidence_of(
        make_interval(0, workers=made), make_interval(1, workers=idle)
    )
    evidence = replace(evidence, run=make_run(loader=loader))
    # 30 batches of an epoch of 30, and at most what else was in flight
    assert Run(evidence).worker_cpu_s == pytest.approx(0.1, rel=0.4)


def test_cpu_of_validation_and_saves_is_not_charged_to_the_step():
    busy = make_interval(1, process_cpu_s=60.0, system_cpu_pct=100.0)
    for part in ('validation', 'checkpoint_save'):
        ledger = {**busy.ledger_s, part: 30.0}
        noisy = replace(busy, ledger_s=ledger, duration_s=sum(ledger.values()))
        calm = make_interval(2, process_cpu_s=4.0, workers=make_workers(0.1))
        summary = Run(evidence_of(make_interval(0), noisy, calm))
        assert summary.main_cpu_s == pytest.approx(0.2)
        assert summary.external_cpu_cores == 0.0


def test_cpu_of_starting_workers_is_not_charged_to_the_step():
    # 2 s of starting, of which 1.3 s are CPU; the first wait is 0.5 s beyond a usual
    firsts = {'first_waits': 1, 'first_wait_s': 0.6}
    one = make_interval(1, process_cpu_s=5.3, **firsts)
    one = replace(one, ledger_s={**one.ledger_s, 'startup': 2.5})
    summary = Run(evidence_of(make_interval(0), one))
    assert summary.main_cpu_s == pytest.approx(0.2)


def test_external_load_is_unknown_when_the_workers_are():
    summary = Run(make_evidence(3, process_cpu_s=4.0, system_cpu_pct=90.0))
    assert summary.external_cpu_cores is None


def test_unknown_stays_unknown():
    summary = Run(
        make_evidence(3, images=None, process_cpu_s=None, data_wait_cpu_s=None)
    )
    assert summary.images_per_s is None
    assert summary.main_cpu_s is None
    assert summary.data_wait_cpu_share is None
    assert summary.worker_cpu_s is None
    assert summary.gpu is None


def test_a_run_without_intervals_knows_nothing():
    summary = Run(evidence_of())
    assert (summary.iterations, summary.steady_iterations) == (0, 0)
    assert (summary.iter_s, summary.data_wait_s, summary.step_s) == (None, None, None)


def test_main_cpu_leaves_the_waits_out():
    summary = Run(make_evidence(3, process_cpu_s=6.0, data_wait_cpu_s=1.0))
    assert summary.main_cpu_s == pytest.approx(5.0 / 20)
    assert summary.data_wait_cpu_share == pytest.approx(1.0 / 2.0)


def test_hooks_are_summed_by_class():
    records = tuple(
        make_interval(i, by_hook={'LoggerHook': 1.0 + i, 'EMAHook': 4.0})
        for i in range(3)
    )
    evidence = RunEvidence('x', make_run(), records)
    hooks = Run(evidence).hooks
    assert list(hooks) == ['EMAHook', 'LoggerHook']
    assert hooks['LoggerHook'].seconds == pytest.approx(6.0)
    assert hooks['LoggerHook'].iteration_s == pytest.approx(5.0 / 40)
    end = replace(make_evidence(1).end, hooks_s={'LoggerHook': 7.5, 'LateHook': 1.0})
    hooks = Run(replace(evidence, end=end)).hooks
    # what came after the last interval is in the end record only
    assert hooks['LoggerHook'].seconds == 7.5
    assert hooks['LateHook'].iteration_s == 0.0
    assert Run(make_evidence(3)).hooks == {}
