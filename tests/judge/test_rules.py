from __future__ import annotations

import pytest

from fakes.replaced import replace
from fakes.runs import (
    add_to_end,
    make_evidence,
    make_inside_workers,
    make_interval,
    make_run,
    make_workers,
    steady,
)
from mmgpu_hooks.judge.rules import RULES
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.verdict import VERDICTS, diagnose_plain_run, diagnose_run
from mmgpu_hooks.schema import (
    Diagnosis,
    GpuWindow,
    HostLimits,
    LoaderSettings,
    PlainRun,
)

RESTARTING = make_run(
    loader=LoaderSettings(
        num_workers=2,
        persistent_workers=False,
        prefetch_factor=2,
        pin_memory=False,
        batch_size=4,
        batches_per_epoch=100,
        dataset_length=400,
    )
)
STARTS = {
    # each interval began with a start of 6 s beside 19 waits of a millisecond
    'data_wait_s': 0.001,
    'first_waits': 1,
    'first_wait_s': 6.0,
    'ledger_s': {'data_wait': 0.02, 'startup': 5.98, 'step': 4.0},
    'data_wait': replace(make_interval().data_wait, total_s=6.019),
}


def diagnose(run=None, **fields) -> Diagnosis:
    return diagnose_run(Run(make_evidence(run=run, **fields)))


def with_parts(**seconds: float) -> Diagnosis:
    """A compute-bound run of 40 s of steps and waits, and other parts beside."""
    evidence = make_evidence(data_wait_s=0.0, step_s=0.25)
    assert evidence.end is not None
    ledger = {**evidence.end.ledger_s, **seconds}
    total = sum(ledger.values())
    end = replace(evidence.end, ledger_s=ledger, duration_s=total, saves=4)
    return diagnose_run(Run(replace(evidence, end=end)))


def severity(diagnosis: Diagnosis, code: str) -> str | None:
    return next((f.severity for f in diagnosis.findings if f.code == code), None)


@pytest.mark.parametrize(
    ('wait_s', 'step_s', 'expected'),
    [
        (0.1, 0.2, 'problem'),
        (0.0101, 0.09, 'problem'),
        (0.0099, 0.0901, 'notice'),
        (0.0051, 0.0949, 'notice'),
        (0.0049, 0.0951, 'ok'),
        (0.0, 0.2, 'ok'),
    ],
)
def test_data_wait_is_judged_by_its_share(wait_s, step_s, expected):
    assert severity(diagnose(data_wait_s=wait_s, step_s=step_s), 'MG101') == expected


def test_too_few_workers_is_the_verdict_when_cores_are_idle():
    diagnosis = diagnose(workers=make_workers(0.55), process_cpu_s=4.0)
    assert diagnosis.verdict.name == 'data_bound_workers'
    assert 'with num_workers=2' in diagnosis.verdict.sentence
    assert '33 % of an iteration' in diagnosis.verdict.sentence


def test_loading_in_the_training_process_is_named():
    run = make_run(
        loader=LoaderSettings(
            num_workers=0,
            persistent_workers=False,
            prefetch_factor=None,
            pin_memory=False,
            batch_size=4,
            batches_per_epoch=100,
            dataset_length=400,
        )
    )
    verdict = diagnose(run=run, data_wait_cpu_s=1.9).verdict
    assert verdict.name == 'data_bound_workers'
    assert 'the training process loads every batch itself' in verdict.sentence


def test_the_cpu_is_the_wall_when_no_setting_could_be_faster():
    run = make_run(host=HostLimits(usable_cores=2.0, ram_available_bytes=2**35))
    diagnosis = diagnose(run=run, workers=make_workers(0.39), process_cpu_s=4.0)
    assert severity(diagnosis, 'MG102') == 'problem'
    assert diagnosis.verdict.name == 'data_bound_cpu'
    assert '0.297 s' in next(f.detail for f in diagnosis.findings if f.code == 'MG102')


def test_cores_that_strangers_want_are_no_wall_where_the_run_was_faster():
    # strangers use half a core and seem to want three and a half
    host = HostLimits(usable_cores=4.0, logical_cpus=4, ram_available_bytes=2**35)
    evidence = make_evidence(
        run=make_run(host=host),
        workers=make_workers(0.39),
        process_cpu_s=4.0,
    )
    run = Run(evidence).altered(external_cpu_cores=0.5)
    assert run.workload is not None
    crowded = run.altered(workload=replace(run.workload, other_tasks=3.5))
    assert crowded.free_cores == 3.5
    assert not crowded.is_cpu_the_wall
    assert crowded.cpu_floor_s <= crowded.iter_s
    assert severity(diagnose_run(crowded), 'MG102') is None


def test_the_floor_is_never_above_what_the_run_took():
    run = Run(make_evidence(workers=make_workers(0.39), process_cpu_s=4.0))
    assert run.workload is not None
    narrow = run.altered(workload=replace(run.workload, usable_cores=0.5))
    assert narrow.cpu_floor_s == run.iter_s


def test_a_run_that_mostly_validates_may_be_starved_in_its_iterations():
    evidence = make_evidence(12, data_wait_s=0.03, step_s=0.17)
    validated_s = 0.9 * sum(evidence.end.ledger_s.values())
    evidence = add_to_end(evidence, validation=validated_s)
    verdict = diagnose_run(Run(evidence)).verdict
    assert verdict.name.startswith('data_bound')
    assert '15 % of an iteration' in verdict.sentence


def test_blocked_workers_are_storage():
    diagnosis = diagnose(workers=make_workers(0.1))
    assert severity(diagnosis, 'MG103') == 'problem'
    assert diagnosis.verdict.name == 'data_bound_storage'


def test_a_rule_without_its_input_cannot_tell():
    diagnosis = diagnose(workers=None)
    for code in ('MG102', 'MG103', 'MG106'):
        assert severity(diagnosis, code) == 'unknown'
    assert all('Cannot tell' in f.detail for f in diagnosis.findings[-3:])


@pytest.mark.parametrize(('workers', 'fires'), [(8, False), (9, True), (32, True)])
def test_more_workers_than_cores_is_noticed(workers, fires):
    run = make_run(
        loader=LoaderSettings(
            num_workers=workers,
            persistent_workers=True,
            prefetch_factor=2,
            pin_memory=False,
            batch_size=4,
            batches_per_epoch=100,
            dataset_length=400,
        )
    )
    assert (severity(diagnose(run=run), 'MG105') == 'notice') is fires


@pytest.mark.parametrize(('cpu_share', 'fires'), [(0.49, False), (0.51, True)])
def test_more_workers_than_cores_are_right_where_they_wait(cpu_share, fires):
    run = make_run(
        loader=LoaderSettings(
            num_workers=9,
            persistent_workers=True,
            prefetch_factor=2,
            pin_memory=False,
            batch_size=4,
            batches_per_epoch=100,
            dataset_length=400,
        )
    )
    waiting = make_inside_workers(
        0.9, count=9, iterations=18, batch_cpu=steady(cpu_share * 0.9, 18)
    )
    diagnosis = diagnose(run=run, workers=waiting, iterations=18)
    assert (severity(diagnosis, 'MG105') == 'notice') is fires


@pytest.mark.parametrize(('delay_s', 'fires'), [(0.1, False), (0.2, True)])
def test_workers_that_wait_for_a_core_are_noticed(delay_s, fires):
    diagnosis = diagnose(workers=make_workers(0.4, run_delay_s=delay_s))
    assert (severity(diagnosis, 'MG106') == 'notice') is fires


@pytest.mark.parametrize(
    ('part', 'seconds', 'code', 'expected', 'verdict'),
    [
        ('checkpoint_save', 5.0, 'MG301', 'problem', 'save_bound'),
        ('checkpoint_save', 4.0, 'MG301', 'problem', 'compute_bound'),
        ('checkpoint_save', 2.0, 'MG301', None, 'compute_bound'),
        ('hooks', 5.0, 'MG303', 'problem', 'hook_bound'),
        ('hooks', 4.0, 'MG303', 'problem', 'compute_bound'),
        ('hooks', 2.0, 'MG303', None, 'compute_bound'),
        ('validation', 20.0, 'MG302', 'notice', 'compute_bound'),
        ('validation', 5.0, 'MG302', None, 'compute_bound'),
    ],
)
def test_parts_beside_the_loop_are_judged_by_their_share(
    part, seconds, code, expected, verdict
):
    diagnosis = with_parts(**{part: seconds})
    assert severity(diagnosis, code) == expected
    assert diagnosis.verdict.name == verdict


def test_start_up_of_workers_is_judged_over_the_run():
    diagnosis = diagnose(run=RESTARTING, **STARTS)
    assert severity(diagnosis, 'MG104') == 'problem'


def test_the_largest_problem_is_the_verdict():
    # 5.7 s of start-up in a 48 s run, and hardly a wait beside it
    assert diagnose(run=RESTARTING, **STARTS).verdict.name == 'startup_bound'


@pytest.mark.parametrize(
    'loader',
    [
        LoaderSettings(
            num_workers=0,
            persistent_workers=False,
            prefetch_factor=None,
            pin_memory=False,
            batch_size=4,
            batches_per_epoch=100,
            dataset_length=400,
        ),
        LoaderSettings(
            num_workers=2,
            persistent_workers=True,
            prefetch_factor=2,
            pin_memory=False,
            batch_size=4,
            batches_per_epoch=100,
            dataset_length=400,
        ),
    ],
    ids=['no workers', 'persistent workers'],
)
def test_workers_that_do_not_start_again_are_not_blamed(loader):
    diagnosis = diagnose(run=make_run(loader=loader), **STARTS)
    assert severity(diagnosis, 'MG104') is None


def test_an_iteration_based_loader_that_starts_over_is_named():
    diagnosis = diagnose(run=make_run(loop='iter'), **STARTS)
    assert severity(diagnosis, 'MG108') == 'problem'
    assert severity(diagnosis, 'MG104') is None
    assert diagnosis.verdict.name == 'startup_bound'


def test_rare_stalls_are_no_starvation():
    run = make_run(host=HostLimits(logical_cpus=8, usable_cores=8.0))
    waits = replace(make_interval().data_wait, p95_s=0.001)
    diagnosis = diagnose(run=run, data_wait=waits, workers=make_workers(0.1))
    assert diagnosis.verdict.name == 'data_bound'
    assert 'in rare stalls' in diagnosis.verdict.sentence
    assert severity(diagnosis, 'MG103') is None


def test_fetching_in_the_training_thread_is_no_starvation():
    diagnosis = diagnose(data_wait_cpu_s=2.0, workers=make_workers(0.1))
    assert diagnosis.verdict.name == 'data_bound'
    assert 'fetching ready batches' in diagnosis.verdict.sentence


def test_validation_that_takes_most_of_the_run_is_the_verdict():
    diagnosis = with_parts(validation=400.0)
    assert severity(diagnosis, 'MG302') == 'problem'
    assert diagnosis.verdict.name == 'validation_bound'


def test_more_cpu_than_there_was_time_for_is_not_judged():
    run = make_run(host=HostLimits(logical_cpus=2, usable_cores=2.0))
    diagnosis = diagnose(run=run, workers=make_workers(2.0), process_cpu_s=4.0)
    assert severity(diagnosis, 'MG102') == 'unknown'
    assert diagnosis.verdict.name != 'data_bound_cpu'


@pytest.mark.parametrize(
    ('gpu', 'expected'),
    [
        (GpuWindow(samples=50, util_pct=95.0, zero_pct=0.0), 'ok'),
        (GpuWindow(samples=50, util_pct=69.0, zero_pct=0.0), 'notice'),
        (GpuWindow(samples=50, util_pct=80.0, zero_pct=12.0), 'notice'),
        (None, 'unknown'),
    ],
)
def test_the_gpu_is_judged_by_utilisation_and_zeros(gpu, expected):
    assert severity(diagnose(run=make_run(device='cuda'), gpu=gpu), 'MG202') == expected


def test_no_gpu_is_no_finding():
    assert severity(diagnose(), 'MG202') is None


def test_a_short_run_is_not_judged():
    diagnosis = diagnose(intervals=2, iterations=19)
    assert diagnosis.verdict.name == 'not_enough_evidence'
    assert 'recorded 19, needed 20; train at least 1 more' in (
        diagnosis.verdict.sentence
    )


def test_an_only_interval_will_be_the_warm_up():
    sentence = diagnose(intervals=1, iterations=5).verdict.sentence
    assert 'recorded 5, needed 20; train at least 35 more' in sentence


@pytest.mark.parametrize(('intervals', 'expected'), [(3, 'medium'), (6, 'high')])
def test_confidence_grows_with_the_iterations(intervals, expected):
    assert diagnose(intervals=intervals).verdict.confidence == expected


@pytest.mark.parametrize(
    ('data_time_s', 'name'), [(0.3, 'data_bound'), (0.01, 'compute_bound')]
)
def test_a_plain_run_is_judged_with_low_confidence(data_time_s, name):
    plain = PlainRun('scalars.json', 500, 10, time_s=0.5, data_time_s=data_time_s)
    verdict = diagnose_plain_run(plain).verdict
    assert (verdict.name, verdict.confidence) == (name, 'low')


def test_every_rule_explains_itself():
    for rule in RULES.values():
        assert len(rule.explanation.split()) > 10, rule.code
        assert rule.title, rule.code


def test_every_verdict_is_in_the_closed_list():
    for fields in ({}, {'data_wait_s': 0.0}, {'intervals': 1, 'iterations': 3}):
        assert diagnose(**fields).verdict.name in VERDICTS


@pytest.mark.parametrize(('busy_pct', 'fires'), [(60.0, True), (20.0, False)])
def test_a_busy_host_is_noticed_and_lowers_the_confidence(busy_pct, fires):
    # training process 0.67 cores, workers 0.33, of 8
    fields = {'process_cpu_s': 4.0, 'workers': make_workers(0.1)}
    diagnosis = diagnose(system_cpu_pct=busy_pct, **fields)
    assert (severity(diagnosis, 'MG107') == 'notice') is fires
    assert diagnosis.verdict.confidence == ('low' if fires else 'high')


def test_cores_that_others_use_are_not_free():
    run = make_run(host=HostLimits(logical_cpus=2, usable_cores=2.0))
    fields = {'workers': make_workers(0.15), 'process_cpu_s': 3.0}
    crowded = diagnose(run=run, system_cpu_pct=100.0, **fields)
    quiet = diagnose(run=run, system_cpu_pct=50.0, **fields)
    assert severity(crowded, 'MG102') == 'problem'
    assert severity(quiet, 'MG102') is None


def test_other_ranks_are_no_strangers():
    host = HostLimits(logical_cpus=8, usable_cores=4.0, ranks_on_host=2)
    diagnosis = diagnose(run=make_run(host=host), system_cpu_pct=100.0)
    assert severity(diagnosis, 'MG107') is None
    assert diagnosis.verdict.confidence == 'high'
