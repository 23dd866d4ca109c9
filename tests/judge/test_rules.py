"""Tests the rules and the verdict with synthetic runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from fakes.replaced import replace
from fakes.runs import (
    add_to_end,
    make_evidence,
    make_host_window,
    make_inside_workers,
    make_interval,
    make_loader,
    make_run,
    make_workers,
    steady,
)
from fakes.saves import HOST, LOADER, MIB, make_calm, make_save, with_saves
from fakes.saves import make_contended_ones as contended
from mmgpu_hooks.judge.ranks import with_saves_of
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.verdict import diagnose_run
from mmgpu_hooks.schema.judged import Diagnosis, Finding
from mmgpu_hooks.schema.recorded import (
    GpuWindow,
    HostLimits,
    LoaderSettings,
    SaveRecord,
)
from mmgpu_hooks.schema.run import RunEvidence

MAIN: dict[str, Any] = {'process_cpu_s': 4.0}
"""Log interval fields in which the train step takes 0.2 s of CPU per iteration."""
KEEPS_UP = {'data_wait_s': 0.001, 'step_s': 0.299, **MAIN}


def diagnose(**fields: Any) -> Diagnosis:
    return diagnose_run(Run(make_evidence(**fields)))


def on_cores(cores: float, **fields: Any) -> Any:
    host = HostLimits(logical_cpus=int(cores), usable_cores=cores, **fields)
    return make_run(host=host)


def bound(cpus: int, workers: int = 2) -> Any:
    """Returns fields of a run that OMP_PROC_BIND bound to fewer than its eight CPUs."""
    eight: dict[str, Any] = {'logical_cpus': 8, 'unbound_cpus': 8, 'usable_cores': 8.0}
    host = HostLimits(affinity_cpus=cpus, bound_by='OMP_PROC_BIND', **eight)
    return {'run': make_run(host=host, loader=make_loader(workers)), **MAIN}


def narrow(cpus: int, workers: int = 2, tasks: int = 1) -> Any:
    """Returns fields of a run that srun bound to fewer CPUs than SLURM gave."""
    host = HostLimits(
        logical_cpus=8,
        affinity_cpus=cpus,
        usable_cores=float(cpus),
        slurm_cpus=8,
        slurm_bound_cpus=cpus,
        slurm_given_cpus=8,
        slurm_tasks=tasks,
        mended_cores=8.0,
    )
    return {'run': make_run(host=host, loader=make_loader(workers)), **MAIN}


UNEXPLAINED = {
    'run': make_run(
        host=HostLimits(
            logical_cpus=8, affinity_cpus=1, wider_thread_cpus=8, usable_cores=1.0
        )
    ),
    **MAIN,
}
"""Fields of a run on one CPU, one of whose threads may use all eight."""


def crowded(busy_pct: float) -> dict[str, Any]:
    """Returns fields of a run on two busy cores with 0.3 s of CPU per batch."""
    used = {'process_cpu_s': 3.0, 'system_cpu_pct': busy_pct}
    return {'run': on_cores(2.0), 'workers': make_workers(0.15), **used}


def nine_workers(cpu_share: float) -> dict[str, Any]:
    """Returns fields of a run with nine workers on eight cores."""
    batch_cpu = steady(cpu_share * 0.9, 18)
    workers = make_inside_workers(0.9, batch_cpu=batch_cpu, count=9, iterations=18)
    return {
        'run': make_run(loader=make_loader(9)),
        'workers': workers,
        'iterations': 18,
    }


def find(diagnosis: Diagnosis, code: str) -> Finding | None:
    return next((f for f in diagnosis.findings if f.code == code), None)


def severity(diagnosis: Diagnosis, code: str) -> str | None:
    found = find(diagnosis, code)
    return None if found is None else found.severity


@pytest.mark.parametrize(
    ('wait_s', 'step_s', 'expected'),
    [
        (0.0101, 0.09, 'problem'),
        (0.0099, 0.0901, 'notice'),
        (0.0051, 0.0949, 'notice'),
        (0.0049, 0.0951, 'ok'),
    ],
)
def test_data_wait_is_judged_by_its_share(wait_s, step_s, expected):
    assert severity(diagnose(data_wait_s=wait_s, step_s=step_s), 'MG101') == expected


CONFINED = make_inside_workers(1.1, count=4, affinity_cpus=4)
IDLE_GPU = GpuWindow(samples=50, util_pct=69.0, zero_pct=0.0, sampled_s=10.0)
NEVER_BUSY = replace(IDLE_GPU, util_pct=0.0, zero_pct=100.0)
STARTS = {
    # each interval began with a start of 6 s beside 19 waits of a millisecond
    'data_wait_s': 0.001,
    'first_waits': 1,
    'first_wait_s': 6.0,
    'ledger_s': {'data_wait': 0.02, 'startup': 5.98, 'step': 4.0},
    'data_wait': replace(make_interval().data_wait, total_s=6.019),
}
OTHER_RANK = on_cores(8.0, ranks_on_host=2)
FOUR_WORKERS = make_run(loader=make_loader(4))
NO_TORCH = make_run(loader=LoaderSettings())
ON_CUDA = make_run(device='cuda')


def timed_gpu(gpu: GpuWindow, idle_pct: float) -> dict[str, Any]:
    timed = {'gpu_idle_pct': idle_pct, 'gpu_idle_iterations': 20}
    return {'run': ON_CUDA, 'gpu': gpu, **timed}


# what the goldens hold is not repeated here: the other side of a threshold is
@pytest.mark.parametrize(
    ('fields', 'code', 'expected', 'verdict'),
    [
        (crowded(100.0), 'MG102', 'problem', 'data_bound_cpu'),
        (crowded(100.0), 'MG107', 'notice', None),
        (crowded(50.0), 'MG102', None, None),
        (crowded(50.0), 'MG107', None, None),
        ({**crowded(50.0), 'workers': make_workers(2.0)}, 'MG102', 'unknown', None),
        ({'run': NO_TORCH}, 'MG105', 'unknown', 'data_bound'),
        (nine_workers(0.51), 'MG105', 'notice', None),
        (nine_workers(0.49), 'MG105', None, None),
        ({'workers': make_workers(0.4, run_delay_s=0.2)}, 'MG106', 'notice', None),
        ({'workers': make_workers(0.4, run_delay_s=0.1)}, 'MG106', None, None),
        ({'run': OTHER_RANK, 'system_cpu_pct': 100.0}, 'MG107', 'unknown', None),
        ({**KEEPS_UP, 'process_run_delay_s': 0.58}, 'MG110', None, 'compute_bound'),
        ({'run': FOUR_WORKERS, 'workers': CONFINED, **MAIN}, 'MG111', 'notice', None),
        (bound(1), 'MG113', 'problem', 'affinity_collapsed'),
        (bound(5), 'MG113', 'notice', 'data_bound_workers'),
        (bound(1, workers=0), 'MG113', 'notice', None),
        (UNEXPLAINED, 'MG113', 'notice', 'data_bound'),
        ({'run': on_cores(1.0, affinity_cpus=1)}, 'MG113', None, None),
        (narrow(1), 'MG117', 'problem', 'affinity_collapsed'),
        pytest.param(
            narrow(1, workers=0),
            'MG117',
            'problem',
            'affinity_collapsed',
            id='narrowed without workers',
        ),
        (narrow(4), 'MG117', 'notice', 'data_bound_workers'),
        ({**narrow(1), **KEEPS_UP}, 'MG117', 'notice', 'compute_bound'),
        ({'run': on_cores(1.0, affinity_cpus=1)}, 'MG117', None, None),
        (STARTS, 'MG104', None, None),
        ({}, 'MG202', None, None),
        ({'run': ON_CUDA, 'gpu': IDLE_GPU}, 'MG202', 'notice', None),
        (timed_gpu(NEVER_BUSY, idle_pct=60.0), 'MG202', 'notice', None),
        (timed_gpu(NEVER_BUSY, idle_pct=40.0), 'MG202', 'unknown', None),
    ],
)
def test_a_planted_run_is_judged(fields, code, expected, verdict):
    diagnosis = diagnose(**fields)
    assert severity(diagnosis, code) == expected
    assert verdict in (None, diagnosis.verdict.name)


def test_who_bound_the_process_is_said_only_where_it_is_known():
    unexplained = find(diagnose(**UNEXPLAINED), 'MG113').detail
    assert 'Who bound it, and whether before the start, is unknown' in unexplained
    explained = find(diagnose(**bound(1)), 'MG113').detail
    assert 'OMP_PROC_BIND bound it to 1 of 8 CPUs (7 lost)' in explained
    assert 'Unset OMP_PROC_BIND' in explained


@pytest.mark.parametrize(
    ('tasks', 'cure'),
    [
        (
            1,
            'Start it with "srun --ntasks=1 --cpus-per-task=8 --cpu-bind=cores ...", '
            'or without srun in the batch script.',
        ),
        (4, 'Start it with "srun --cpus-per-task=8 --cpu-bind=cores ...".'),
    ],
)
def test_the_line_that_mends_a_start_has_numbers(tasks, cure):
    detail = find(diagnose(**narrow(1, tasks=tasks)), 'MG117').detail
    assert detail == (
        'srun bound this task to 1 CPU of the 8 that SLURM gave it, and its 2 '
        f'workers with it. {cure}'
    )


@pytest.mark.parametrize(
    ('part', 'seconds', 'code', 'expected', 'verdict'),
    [
        ('checkpoint_save', 5.0, 'MG301', 'problem', 'save_bound'),
        ('checkpoint_save', 4.0, 'MG301', 'problem', 'compute_bound'),
        ('checkpoint_save', 2.0, 'MG301', 'ok', 'compute_bound'),
        ('hooks', 5.0, 'MG303', 'problem', 'hook_bound'),
        ('hooks', 2.0, 'MG303', None, 'compute_bound'),
        ('validation', 400.0, 'MG302', 'problem', 'validation_bound'),
        ('validation', 20.0, 'MG302', 'notice', 'compute_bound'),
        ('validation', 5.0, 'MG302', None, 'compute_bound'),
    ],
)
def test_parts_beside_the_loop_are_judged_by_their_share(
    part, seconds, code, expected, verdict
):
    evidence = make_evidence(data_wait_s=0.0, step_s=0.25)
    evidence = add_to_end(evidence, **{part: seconds})
    evidence = replace(evidence, end=replace(evidence.end, saves=4))
    diagnosis = diagnose_run(Run(evidence))
    assert severity(diagnosis, code) == expected
    assert diagnosis.verdict.name == verdict


def test_cores_that_are_unknown_are_not_called_none():
    verdict = diagnose(run=make_run(host=HostLimits())).verdict
    assert 'num_workers=2 on an unknown number of usable cores' in verdict.sentence


def test_cores_that_others_want_are_no_wall_where_the_run_was_faster():
    # others use half a core and seem to want three and a half
    evidence = make_evidence(run=on_cores(4.0), workers=make_workers(0.39), **MAIN)
    run = Run(evidence)
    run = run.replaced(figures=replace(run.figures, external_cpu_cores=0.5))
    wanted = run.replaced(workload=replace(run.workload, other_tasks=3.5))
    assert wanted.free_cores == 3.5
    assert wanted.cpu_floor_s <= wanted.figures.iter_s
    assert severity(diagnose_run(wanted), 'MG102') is None


def test_a_run_that_mostly_validates_may_be_starved_in_its_iterations():
    evidence = make_evidence(12, data_wait_s=0.03, step_s=0.17)
    evidence = add_to_end(evidence, validation=0.9 * Run(evidence).figures.duration_s)
    assert diagnose_run(Run(evidence)).verdict.name.startswith('data_bound')


@pytest.mark.parametrize(
    ('intervals', 'iterations', 'missing'), [(2, 19, 1), (1, 5, 35)]
)
def test_a_short_run_says_how_much_more_it_needs(intervals, iterations, missing):
    verdict = diagnose(intervals=intervals, iterations=iterations).verdict
    assert f'at least {missing} more' in verdict.sentence
    assert verdict.headspace_pct is None


def test_the_headspace_is_what_free_data_would_give():
    # 0.1 s of every 0.3 s is waiting
    assert diagnose().verdict.headspace_pct == pytest.approx(50.0)
    run = Run(make_evidence(workers=make_inside_workers(0.2), **MAIN))
    held_up = run.replaced(workload=replace(run.workload, held_up_s=0.1))
    # 0.1 s of every 0.3 s is the step's own, in the steady iterations
    assert held_up.headspace_pct > 2 * run.headspace_pct > 0.0


def saving(saves: Sequence[SaveRecord], **fields: Any) -> Run:
    """Returns a compute-bound 40 s run with checkpoint saves and usual data waits."""
    run = make_run(host=HOST, loader=LOADER, **fields)
    evidence = make_evidence(run=run, data_wait_s=0.0, step_s=0.25)
    return Run(with_saves(evidence, saves))


@pytest.mark.parametrize(('count', 'expected'), [(2, 'problem'), (1, 'notice')])
def test_contended_saves_are_a_problem_by_their_net_share(count, expected):
    # 1.6 s each; the run takes 42 or 44 s
    found = find(diagnose_run(saving(contended(count))), 'MG304')
    assert found.severity == expected
    assert found.share == pytest.approx(1.6 * count / (40 + 2 * count))


def test_a_delay_that_was_won_back_is_no_problem_and_an_unknown_one_is_not_counted():
    run = saving(contended(8))
    back = tuple(
        replace(after, usual_wait_s=0.1, waits_s=0.0) for after in run.after_saves
    )
    for after_saves, share in ((back, 0.0), ((), None)):
        judged = diagnose_run(Run(replace(run.evidence, after_saves=after_saves)))
        found = find(judged, 'MG304')
        assert (found.severity, found.share) == ('notice', share)
        assert ('lost an unknown time (net)' in found.detail) is (share is None)
    known = replace(run.evidence, after_saves=run.after_saves[:1])
    some = diagnose_run(Run(known))
    assert 'the job lost 1.6 s (net, known of 1)' in find(some, 'MG304').detail


@pytest.mark.parametrize(
    ('saves', 'said'),
    [
        (contended(6), 'For 9.6 s of it (gross) loader'),
        # small delays that add up
        (contended(30, cpu_s=0.2, run_delay_s=0.11), 'For 3.3 s of it (gross) loader'),
        (contended(30, cpu_s=0.2, run_delay_s=0.09), None),
        (make_calm(20), None),
    ],
    ids=['long delays', 'small delays that add up', 'too small', 'none'],
)
def test_a_run_bound_by_its_saves_names_what_is_proven_to_have_held_them(saves, said):
    verdict = diagnose_run(saving(saves)).verdict
    assert verdict.name == 'save_bound'
    assert (' of it ' in verdict.sentence) is (said is not None)
    assert (said or '') in verdict.sentence


def save_with(iteration: int, histories: int | None, whole_mib: int) -> SaveRecord:
    return make_save(
        iteration, bytes=whole_mib * MIB, message_hub_bytes=histories, wall_s=0.4
    )


@pytest.mark.parametrize(
    ('saves', 'max_iters', 'said'),
    [
        # they grow by 12 MiB in 60 iterations, and 1,040 are left
        (
            [save_with(100, 20 * MIB, 100), save_with(160, 32 * MIB, 112)],
            1200,
            'at iteration 160 holds 32 MiB of histories in 112 MiB; 240 MiB of 320 MiB '
            'when training ends, 209715 bytes more per iteration.',
        ),
        # little yet
        (
            [save_with(100, 2 * MIB, 102)],
            1200,
            'holds 2 MiB of histories in 102 MiB; 24 MiB of 124 MiB when',
        ),
        # 13 scalars of a million values at most
        ([save_with(160, 160 * 16 * 13, 100)], 10**9, '198 MiB of 298 MiB when'),
        # none are added: of a hook that keeps them short
        (
            [save_with(100, 30 * MIB, 100), save_with(160, 30 * MIB, 100)],
            1200,
            'holds 30 MiB of histories in 100 MiB. A hook',
        ),
        ([save_with(160, MIB, 200)], 1200, None),
        ([save_with(160, 20 * MIB, 1000)], 160, None),
        ([save_with(160, None, 100)], 1200, None),
        ([], 1200, None),
    ],
    ids=[
        'growing',
        'little yet',
        'the most that scalars can',
        'kept short',
        'little of it',
        'at the end',
        'unknown',
        'no save',
    ],
)
def test_checkpoints_that_histories_fill_are_named(saves, max_iters, said):
    judged = diagnose_run(saving(saves, max_iters=max_iters))
    found = [finding.detail for finding in judged.findings if finding.code == 'MG309']
    assert len(found) == (said is not None)
    assert (said or '') in ' '.join(found)


def test_ranks_that_wait_for_the_saves_of_the_first_are_counted():
    first = saving(contended(3), world_size=8)
    assert '48.0 s of the time of 8 ranks' in find(diagnose_run(first), 'MG301').detail
    judged = with_saves_of(saving([], world_size=8, rank=1), first)
    causes = [entry.cause for entry in diagnose_run(judged).saves]
    assert causes == ['workers'] * 3


def test_a_quota_is_held_against_all_the_time_that_a_window_of_the_host_spans():
    # an interval takes 6 s; the host was read in every fifth
    windows = [make_host_window(throttled_s=s) for s in (0.5, 3.0)]
    for window, expected in zip(windows, (None, 'problem')):
        intervals = tuple(
            make_interval(n, host=None if n % 5 else window) for n in range(1, 11)
        )
        run = Run(RunEvidence('x', make_run(), intervals))
        assert severity(diagnose_run(run), 'MG112') == expected
