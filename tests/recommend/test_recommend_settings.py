from __future__ import annotations

from typing import Any

import pytest

from benchmarks.regret import draw_null
from fakes.changed import changed
from fakes.replaced import replace
from fakes.runs import (
    GIB,
    add_to_end,
    make_evidence,
    make_inside_workers,
    make_interval,
    make_loader,
    make_run,
    make_workers,
)
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.model.prediction import JobPlan
from mmgpu_hooks.recommend.job import TRAIN, plan_job
from mmgpu_hooks.recommend.pairs import pair_settings, sum_predicted_gain
from mmgpu_hooks.recommend.recommendation import recommend_settings
from mmgpu_hooks.recommend.settings import BY_NAME
from mmgpu_hooks.recommend.settings.persistent_workers import count_starts
from mmgpu_hooks.schema.judged import Change, Recommendation
from mmgpu_hooks.schema.recorded import (
    HostLimits,
    LoaderSettings,
    TunedRecord,
    TunedSettings,
)
from mmgpu_hooks.schema.text import quoted

THREADS_KEY = BY_NAME['opencv_num_threads'].key()


def loader(num_workers: int, persistent: bool = True, **fields) -> LoaderSettings:
    return make_loader(num_workers, persistent_workers=persistent, **fields)


def host(cores: float, **fields) -> HostLimits:
    limits: dict[str, Any] = {
        'ram_available_bytes': 256 * GIB,
        'shm_free_bytes': 64 * GIB,
        'open_files_soft': 10**6,
        **fields,
    }
    return HostLimits(usable_cores=cores, **limits)


def recommend(
    settings: LoaderSettings, limits: HostLimits, **fields: Any
) -> Recommendation:
    run = make_run(
        loader=settings,
        host=limits,
        device=fields.pop('device', 'cpu'),
        max_epochs=fields.pop('max_epochs', 12),
    )
    return recommend_settings(Run(make_evidence(run=run, **fields)))


# A wait is per iteration, cpu_s per batch; the main process takes one core of the step.
BUSY = {'process_cpu_s': 4.0}


@pytest.mark.parametrize(
    ('wait_s', 'cores', 'workers'),
    [
        (0.2, 8.0, 1),  # loading as long as the step, and always the same
        (0.1, 8.0, 1),
        (0.5, 8.0, 3),
        (0.9, 16.0, 5),
        (0.2, 2.0, 1),  # a core is all that is left
        (5.0, 4.0, 4),  # into the core of the training process, since it pays
    ],
)
def test_workers_are_as_few_as_keep_up(wait_s, cores, workers):
    fields: dict[str, Any] = {
        'data_wait_s': wait_s,
        'data_wait_cpu_s': wait_s * 20,
        **BUSY,
    }
    fields['process_cpu_s'] += wait_s * 20
    found = recommend(loader(0, False), host(cores), **fields)
    assert changed(found) == {'num_workers': workers, 'persistent_workers': True}


LOADING = {'data_wait_s': 0.2, 'data_wait_cpu_s': 4.0, 'batch_bytes': 60 * 2**20}
RARE = {'data_wait': replace(make_interval().data_wait, p95_s=0.001)}


@pytest.mark.parametrize(
    ('settings', 'limits', 'fields', 'why'),
    [
        (loader(2), host(8.0), {'data_wait_s': 0.005}, 'data is at hand'),
        (loader(2), host(2.0), {'workers': make_workers(0.39)}, 'CPU is the wall'),
        (loader(0, False), HostLimits(), {}, 'number of usable cores is unknown'),
        (loader(0, False), host(8.0, shm_free_bytes=2**20), LOADING, '/dev/shm'),
        (
            loader(4),
            host(16.0),
            {**RARE, 'workers': make_workers(0.1)},
            'not those of a loader that cannot keep up',
        ),
        # workers that wait for storage are right to outnumber the cores
        (
            loader(32),
            host(8.0),
            {'data_wait_s': 0.001, 'workers': make_workers(0.05, count=32)},
            'data is at hand',
        ),
    ],
)
def test_nothing_changes_and_the_reason_is_said(settings, limits, fields, why):
    found = recommend(settings, limits, **{**BUSY, **fields})
    assert found.changes == ()
    assert why in (found.reason or '')


@pytest.mark.parametrize(
    ('limits', 'named'),
    [
        ({'ram_available_bytes': 4 * GIB}, 'memory'),
        ({'ram_available_bytes': 32 * GIB, 'ranks_on_host': 8}, 'memory'),
        ({'cgroup_memory_bytes': 4 * GIB}, 'memory'),
        ({'shm_free_bytes': 8 * 2**20}, '/dev/shm'),
        ({'open_files_soft': 96}, 'open files'),
    ],
)
def test_workers_never_exceed_the_host(limits, named):
    loading = {'data_wait_s': 3.0, 'data_wait_cpu_s': 1.0}
    found = recommend(loader(0, False), host(32.0, **limits), **loading, **BUSY)
    assert changed(found)['num_workers'] == 2
    assert named in found.changes[0].reason


@pytest.mark.parametrize(('cpu_s', 'workers'), [(0.4, 2), (4.0, 1)])
def test_workers_that_wait_share_the_core_of_the_training(cpu_s, workers):
    # a batch takes 0.215 s and the step 0.2 s: a second worker saves less than a tenth
    waits = {'data_wait_s': 0.215, 'data_wait_cpu_s': cpu_s, 'process_cpu_s': 4 + cpu_s}
    found = recommend(loader(0, False), host(2.0), **waits)
    assert changed(found)['num_workers'] == workers


WAITING = {'data_wait_s': 4.0, 'data_wait_cpu_s': 16.0, **BUSY}
"""Log interval fields: a batch takes 4 s to load, a fifth of it CPU time."""


def test_workers_that_wait_outnumber_the_cores():
    found = recommend(loader(0, False), host(4.0), **WAITING)
    assert changed(found)['num_workers'] == 18
    reason = found.changes[0].reason
    assert '4 usable cores, which a worker needs 20 % of its time' in reason
    assert 'PyTorch will warn' in reason
    assert found.changes[0].predicted_gain_low_pct > 0
    # on enough cores PyTorch says nothing
    wide = recommend(loader(0, False), host(64.0), **WAITING)
    assert 'PyTorch' not in wide.changes[0].reason


@pytest.mark.parametrize(('cpu_s', 'workers'), [(39.0, 8), (41.0, 4)])
def test_workers_outnumber_the_cores_from_half_a_batch_of_waiting(cpu_s, workers):
    half = {**WAITING, 'data_wait_cpu_s': cpu_s}
    found = recommend(loader(0, False), host(4.0), **half)
    assert changed(found)['num_workers'] == workers


@pytest.mark.parametrize(
    'case',
    [
        {'first_waits': 1, 'first_wait_s': 0.02, 'data_wait_s': 0.001},
        {'max_epochs': 1, 'first_waits': 1, 'first_wait_s': 1.0, 'data_wait_s': 0.001},
    ],
    ids=['start-up too short to measure', 'a single epoch'],
)
def test_workers_need_not_persist(case):
    assert recommend(loader(2, False), host(8.0), **case).changes == ()


@pytest.mark.parametrize(
    ('grown', 'kept'), [(0, {'persistent_workers': True}), (1, {})]
)
def test_workers_that_grow_are_not_kept(grown, kept):
    starts: dict[str, Any] = {
        'first_waits': 1,
        'first_wait_s': 1.0,
        'data_wait_s': 0.001,
    }
    run = make_run(loader=loader(2, False), host=host(8.0), max_epochs=12)
    evidence = make_evidence(60, run=run, **starts)
    intervals = tuple(
        replace(interval, worker_own_bytes=GIB + grown * n * 2**23)
        for n, interval in enumerate(evidence.intervals)
    )
    found = recommend_settings(Run(replace(evidence, intervals=intervals)))
    assert changed(found) == kept


@pytest.mark.parametrize('pin', [False, True])
def test_pinned_memory_is_advice_since_no_gain_of_it_was_measured(pin):
    starved = {'workers': make_workers(0.6), **BUSY}
    found = recommend(loader(2, pin_memory=pin), host(16.0), device='cuda', **starved)
    assert changed(found) == {'num_workers': 4}
    assert any('pin_memory=True' in advice for advice in found.advice) is not pin


def test_workers_that_only_cost_starts_are_taken_out_with_their_settings():
    # loading takes a millisecond of a step of 20; each epoch of 5 starts 2 workers
    settings = replace(loader(2), batches_per_epoch=5, dataset_length=20)
    inside = make_inside_workers(0.001, std_s=0.0)
    fields: dict[str, Any] = {
        'data_wait_s': 0.0005,
        'step_s': 0.02,
        'process_cpu_s': 0.4,
    }
    starts: dict[str, Any] = {
        'first_waits': 4,
        'first_wait_s': 4.0,
        'workers': inside,
        **fields,
    }
    run = make_run(loader=settings, host=host(8.0), max_epochs=1)
    found = recommend_settings(Run(make_evidence(run=run, **starts)))
    assert changed(found) == {
        'num_workers': 0,
        'prefetch_factor': None,
        'persistent_workers': False,
    }


SPREAD = {
    'workers': make_inside_workers(0.25, std_s=0.5),
    'data_wait_s': 0.08,
    'step_s': 0.2,
    **BUSY,
}
"""Log interval fields: a batch's loading time has a deviation of twice its mean."""


def test_more_batches_ahead_where_they_carry_the_loop_over_late_ones():
    found = recommend(loader(4), host(4.0), **SPREAD)
    assert changed(found) == {'prefetch_factor': 4}
    # half of 24 MiB is 4 x 2 batches of a MiB, and less than 4 x 4
    tight = host(4.0, shm_free_bytes=24 * 2**20)
    assert recommend(loader(4), tight, **SPREAD).changes == ()


@pytest.mark.parametrize('seed', range(4))
def test_nothing_is_changed_where_nothing_is_to_gain(seed):
    assert recommend_settings(Run(draw_null(seed))).changes == ()


# Threads of OpenCV in workers: when one each is written, and what is said else.

CPU_S, ITER_S = 0.8, 0.41


def make_threads(
    opencv: int | None = 64, cores: float = 2.0, beside: float = 0.5
) -> Run:
    """Returns a run with four workers of ten threads that use two cores fully."""
    window = replace(
        make_inside_workers(4 * ITER_S, count=4),
        cpu_s=20 * CPU_S,
        run_delay_s=20 * 0.6,
        thread_cpu_s=20 * beside * CPU_S,
        fetch_cpu_s=CPU_S,
        opencv_threads=opencv,
    )
    window = replace(window, batch_cpu=replace(window.batch_cpu, mean_s=CPU_S))
    host = replace(make_run().host, logical_cpus=2, usable_cores=cores)
    run = make_run(loader=make_loader(4), host=host)
    fields: dict[str, Any] = {
        'workers': window,
        'worker_threads': 10,
        'process_cpu_s': 0.2,
    }
    return Run(make_evidence(run=run, data_wait_s=ITER_S - 0.01, step_s=0.01, **fields))


def test_one_thread_each_is_written_where_that_gains_for_sure():
    run = make_threads()
    found = recommend_settings(run)
    change = found.changes[0]
    assert (change.key, change.old, change.new) == (THREADS_KEY, 64, 0)
    assert change.rules == ('MG115',)
    assert 0 < change.predicted_gain_low_pct < change.predicted_gain_pct
    assert change.predicted_iter_s < run.figures.iter_s
    assert [settings[THREADS_KEY] for settings in pair_settings(run, found)] == [64, 0]


@pytest.mark.parametrize(
    'fields',
    [{'opencv': 1}, {'opencv': None}, {'cores': 64.0}, {'beside': 0.05}],
    ids=['not of OpenCV', 'no OpenCV', 'cores enough', 'idle threads'],
)
def test_threads_stay_where_they_are_not_what_takes_the_cores(fields):
    found = recommend_settings(make_threads(**fields))
    assert THREADS_KEY not in {change.key for change in found.changes}


def test_threads_of_others_than_opencv_are_advice():
    assert 'OMP_NUM_THREADS=1' in recommend_settings(make_threads(opencv=1)).advice[0]


def test_a_gain_that_may_be_none_is_advice():
    found = recommend_settings(make_threads(opencv=8))
    assert THREADS_KEY not in {change.key for change in found.changes}
    assert 'opencv_num_threads 8 -> 0 would save' in found.advice[0]
    assert 'too unsure to be written' in found.advice[0]


# What `verify` trains.


def of_loader(**changes: object) -> Recommendation:
    """Returns a recommendation with the given changes to the train loader."""
    return Recommendation(
        tuple(
            Change(
                f'{TRAIN}.{name}',
                1,
                new,
                quoted('it helps'),
                'high',
                predicted_iter_s=0.2,
            )
            for name, new in changes.items()
        )
    )


ALONE = {'num_workers': 0, 'prefetch_factor': None, 'persistent_workers': False}


@pytest.mark.parametrize(
    ('settings', 'changes', 'after'),
    [
        (
            loader(2, prefetch_factor=4),
            {'num_workers': 3},
            {'num_workers': 3, 'prefetch_factor': 4, 'persistent_workers': True},
        ),
        (
            loader(0, False, prefetch_factor=2),
            {'num_workers': 1},
            {'num_workers': 1, 'persistent_workers': False},
        ),
        (loader(2), ALONE, ALONE),
    ],
)
def test_what_ran_is_trained_again_with_the_changes(settings, changes, after):
    run = Run(make_evidence(run=make_run(loader=settings)))
    before, wanted = pair_settings(run, of_loader(**changes))
    assert before[f'{TRAIN}.' + 'num_workers'] == settings.num_workers
    after = {'pin_memory': False, **after}
    assert wanted == {f'{TRAIN}.{name}': value for name, value in after.items()}


def test_nothing_recommended_of_the_train_loader_is_nothing_to_train():
    other = Change('val_dataloader.num_workers', 2, 4, quoted('it helps'), 'high')
    for changes in ((), (other,)):
        assert pair_settings(Run(make_evidence()), Recommendation(changes)) is None


def test_the_predicted_gain_is_in_images_per_second():
    run = Run(make_evidence())
    assert run.figures.iter_s == pytest.approx(0.3)
    assert sum_predicted_gain(run, of_loader(num_workers=3)) == pytest.approx(0.5)
    key = f'{TRAIN}.' + 'batch_size'
    twice = Change(key, 4, 8, quoted('it fits'), 'high', predicted_iter_s=0.4)
    assert sum_predicted_gain(run, Recommendation((twice,))) == pytest.approx(0.5)
    key = f'{TRAIN}.' + 'pin_memory'
    silent = Recommendation((Change(key, False, True, quoted('x'), 'low'),))
    assert sum_predicted_gain(run, silent) is None


# What a job is.


def read(saves: int = 0, **run) -> Run:
    evidence = make_evidence(run=make_run(**run))
    return Run(add_to_end(evidence, checkpoint_save=2.0 * saves))


@pytest.mark.parametrize(
    ('run', 'plan'),
    [
        # 160 iterations were recorded, of 12 epochs of 100
        ({}, JobPlan(100, 12)),
        ({'loop': 'iter', 'max_iters': 5000}, JobPlan(5000, 1)),
        ({'loop': 'MyLoop', 'max_iters': None}, JobPlan(160, 1)),
        # 8 s in 160 iterations, so 60 s in 1200
        ({'saves': 4}, JobPlan(100, 12, 60.0)),
    ],
)
def test_a_job_is_what_was_configured(run, plan):
    assert plan_job(read(**run)) == plan


@pytest.mark.parametrize(
    ('run', 'starts'), [({}, 12), ({'loop': 'iter'}, 3), ({'max_epochs': None}, 3)]
)
def test_starts_are_what_is_configured_or_was_seen(run, starts):
    had = read(**run)
    seen = had.replaced(figures=replace(had.figures, epoch_starts=3))
    assert count_starts(seen) == starts


def test_workers_that_could_not_load_are_not_recommended():
    evidence = make_evidence(
        run=make_run(loader=loader(0), host=host(16.0), device='cpu', max_epochs=12),
        data_wait_s=0.9,
        step_s=0.1,
        process_cpu_s=10.0,
    )
    none, eight = TunedSettings(num_workers=0), TunedSettings(num_workers=8)
    change = TunedRecord(
        iteration=0, action='change', reason='predicted', old=none, new=eight
    )
    back = replace(change, action='roll_back', reason='failed', old=eight, new=none)
    key = 'train_dataloader.num_workers'
    assert key in [each.key for each in recommend_settings(Run(evidence)).changes]
    failed = Run(replace(evidence, tuned=(change, back)))
    assert key not in [each.key for each in recommend_settings(failed).changes]
