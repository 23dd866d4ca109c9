"""Rules and the verdict, over runs whose every figure is planted."""

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
from fakes.saves import (
    HOST,
    LOADER,
    MIB,
    make_aftermath,
    make_calm,
    make_contended,
    make_save,
    walls_of,
)
from mmgpu_hooks.judge.ranks import with_saves_of
from mmgpu_hooks.judge.rules import RULES
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.verdict import diagnose_plain_run, diagnose_run
from mmgpu_hooks.schema import (
    Diagnosis,
    Finding,
    GpuWindow,
    HostLimits,
    LoaderSettings,
    PlainRun,
    RunEvidence,
    SaveRecord,
)

MAIN = {'process_cpu_s': 4.0}
"""0.2 s per iteration: the step."""
KEEPS_UP = {'data_wait_s': 0.001, 'step_s': 0.299, **MAIN}
STARTS = {
    # each interval began with a start of 6 s beside 19 waits of a millisecond
    'data_wait_s': 0.001,
    'first_waits': 1,
    'first_wait_s': 6.0,
    'ledger_s': {'data_wait': 0.02, 'startup': 5.98, 'step': 4.0},
    'data_wait': replace(make_interval().data_wait, total_s=6.019),
}


def diagnose(run: Any = None, **fields: Any) -> Diagnosis:
    return diagnose_run(Run(make_evidence(run=run, **fields)))


def on_cores(cores: float, **fields: Any) -> Any:
    return make_run(
        host=HostLimits(logical_cpus=int(cores), usable_cores=cores, **fields)
    )


def with_workers(count: int, **fields: Any) -> Any:
    return make_run(loader=make_loader(count, **fields))


def find(diagnosis: Diagnosis, code: str) -> Finding | None:
    return next((f for f in diagnosis.findings if f.code == code), None)


def severity(diagnosis: Diagnosis, code: str) -> str | None:
    found = find(diagnosis, code)
    return found and found.severity


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


BOUND = {'logical_cpus': 8, 'unbound_cpus': 8, 'usable_cores': 8.0}
STALLS = replace(make_interval().data_wait, p95_s=0.001)
LATE = make_inside_workers(0.4, std_s=0.4, out_of_order=8)
HALF_CPU = {'count': 9, 'iterations': 18}

# what the goldens hold is not repeated here
CASES: dict[str, tuple[dict[str, Any], dict[str, str | None], str | None]] = {
    # fields of the run; severities by code; the verdict
    'the CPU is the wall, as others have it': (
        {
            'run': on_cores(2.0),
            'workers': make_workers(0.15),
            'process_cpu_s': 3.0,
            'system_cpu_pct': 100.0,
        },
        {'MG102': 'problem', 'MG107': 'notice'},
        'data_bound_cpu',
    ),
    'twin: quiet': (
        {
            'run': on_cores(2.0),
            'workers': make_workers(0.15),
            'process_cpu_s': 3.0,
            'system_cpu_pct': 50.0,
        },
        {'MG102': None, 'MG107': None},
        None,
    ),
    'more CPU than there was time for': (
        {'run': on_cores(2.0), 'workers': make_workers(2.0), **MAIN},
        {'MG102': 'unknown'},
        None,
    ),
    'twin: in order': (
        {'data_wait_s': 0.06, 'workers': replace(LATE, out_of_order=0), **MAIN},
        {'MG109': None},
        None,
    ),
    'an order that was not measured': (
        {'workers': make_workers(0.4), **MAIN},
        {'MG109': 'unknown'},
        None,
    ),
    'a loader that is none of PyTorch': (
        {'run': make_run(loader=LoaderSettings())},
        {'MG105': 'unknown'},
        'data_bound',
    ),
    'more workers than cores, half of the time on them': (
        {
            'run': with_workers(9),
            'workers': make_inside_workers(
                0.9, batch_cpu=steady(0.51 * 0.9, 18), **HALF_CPU
            ),
            'iterations': 18,
        },
        {'MG105': 'notice'},
        None,
    ),
    'twin: they wait': (
        {
            'run': with_workers(9),
            'workers': make_inside_workers(
                0.9, batch_cpu=steady(0.49 * 0.9, 18), **HALF_CPU
            ),
            'iterations': 18,
        },
        {'MG105': None},
        None,
    ),
    'workers wait for a core': (
        {'workers': make_workers(0.4, run_delay_s=0.2)},
        {'MG106': 'notice'},
        None,
    ),
    'twin: hardly': (
        {'workers': make_workers(0.4, run_delay_s=0.1)},
        {'MG106': None},
        None,
    ),
    'other ranks do': (
        {'run': on_cores(8.0, ranks_on_host=2), 'system_cpu_pct': 100.0, **MAIN},
        {'MG107': None},
        None,
    ),
    'twin: hardly waits': (
        {**KEEPS_UP, 'process_run_delay_s': 20 * 0.029},
        {'MG110': None},
        'compute_bound',
    ),
    'workers with a CPU each': (
        {
            'run': with_workers(4),
            'workers': make_inside_workers(1.1, count=4, affinity_cpus=4),
            **MAIN,
        },
        {'MG111': 'notice'},
        None,
    ),
    'twin: now and then': (
        {**KEEPS_UP, 'host': make_host_window(throttled_s=0.2)},
        {'MG112': None},
        'compute_bound',
    ),
    'a process bound to one CPU': (
        {
            'run': make_run(host=HostLimits(affinity_cpus=1, **BOUND)),
            **MAIN,
        },
        {'MG113': 'problem'},
        'affinity_collapsed',
    ),
    'bound, with room for its workers': (
        {
            'run': make_run(host=HostLimits(affinity_cpus=5, **BOUND)),
            **MAIN,
        },
        {'MG113': 'notice'},
        'data_bound_workers',
    ),
    'bound, without workers': (
        {
            'run': make_run(
                host=HostLimits(affinity_cpus=1, **BOUND), loader=make_loader(0)
            )
        },
        {'MG113': 'notice'},
        None,
    ),
    'never bound': ({'run': on_cores(1.0, affinity_cpus=1)}, {'MG113': None}, None),
    'Pillow decodes': (
        {'run': with_workers(2, image_decoder='pillow'), **KEEPS_UP},
        {'MG114': 'notice'},
        'compute_bound',
    ),
    'persistent workers': (STARTS, {'MG104': None}, None),
    'no GPU': ({}, {'MG202': None}, None),
    'an idle GPU': (
        {
            'run': make_run(device='cuda'),
            'gpu': GpuWindow(samples=50, util_pct=69.0, zero_pct=0.0),
        },
        {'MG202': 'notice'},
        None,
    ),
}


@pytest.mark.parametrize('case', CASES)
def test_a_planted_run_is_judged(case):
    fields, severities, verdict = CASES[case]
    diagnosis = diagnose(**fields)
    assert {code: severity(diagnosis, code) for code in severities} == severities
    assert verdict in (None, diagnosis.verdict.name)


@pytest.mark.parametrize(
    ('part', 'seconds', 'code', 'expected', 'verdict'),
    [
        ('checkpoint_save', 5.0, 'MG301', 'problem', 'save_bound'),
        ('checkpoint_save', 4.0, 'MG301', 'problem', 'compute_bound'),
        ('checkpoint_save', 2.0, 'MG301', 'ok', 'compute_bound'),
        ('hooks', 5.0, 'MG303', 'problem', 'hook_bound'),
        ('hooks', 4.0, 'MG303', 'problem', 'compute_bound'),
        ('hooks', 2.0, 'MG303', None, 'compute_bound'),
        ('validation', 400.0, 'MG302', 'problem', 'validation_bound'),
        ('validation', 20.0, 'MG302', 'notice', 'compute_bound'),
        ('validation', 5.0, 'MG302', None, 'compute_bound'),
    ],
)
def test_parts_beside_the_loop_are_judged_by_their_share(
    part, seconds, code, expected, verdict
):
    evidence = add_to_end(
        make_evidence(data_wait_s=0.0, step_s=0.25), **{part: seconds}
    )
    evidence = replace(evidence, end=replace(evidence.end, saves=4))
    diagnosis = diagnose_run(Run(evidence))
    assert severity(diagnosis, code) == expected
    assert diagnosis.verdict.name == verdict


def test_cores_that_others_want_are_no_wall_where_the_run_was_faster():
    # others use half a core and seem to want three and a half
    evidence = make_evidence(run=on_cores(4.0), workers=make_workers(0.39), **MAIN)
    run = Run(evidence).altered(external_cpu_cores=0.5)
    crowded = run.altered(workload=replace(run.workload, other_tasks=3.5))
    assert crowded.free_cores == 3.5
    assert crowded.cpu_floor_s <= crowded.iter_s
    assert severity(diagnose_run(crowded), 'MG102') is None


def test_a_run_that_mostly_validates_may_be_starved_in_its_iterations():
    evidence = make_evidence(12, data_wait_s=0.03, step_s=0.17)
    evidence = add_to_end(evidence, validation=0.9 * Run(evidence).duration_s)
    assert diagnose_run(Run(evidence)).verdict.name.startswith('data_bound')


@pytest.mark.parametrize(
    ('intervals', 'iterations', 'missing'), [(2, 19, 1), (1, 5, 35)]
)
def test_a_short_run_says_how_much_more_it_needs(intervals, iterations, missing):
    verdict = diagnose(intervals=intervals, iterations=iterations).verdict
    assert f'recorded {iterations}, needed 20' in verdict.sentence
    assert f'at least {missing} more' in verdict.sentence
    assert verdict.headspace_pct is None


@pytest.mark.parametrize(
    ('intervals', 'busy_pct', 'expected'),
    [(3, 20.0, 'medium'), (6, 20.0, 'high'), (6, 60.0, 'low')],
)
def test_confidence_is_of_the_iterations_and_of_the_host(intervals, busy_pct, expected):
    busy = {'system_cpu_pct': busy_pct, 'workers': make_workers(0.1), **MAIN}
    assert diagnose(intervals=intervals, **busy).verdict.confidence == expected


def test_the_headspace_is_what_free_data_would_give():
    # 0.1 s of every 0.3 s is waiting
    assert diagnose().verdict.headspace_pct == pytest.approx(50.0)
    assert diagnose(data_wait_s=0.0).verdict.headspace_pct == 0.0
    run = Run(make_evidence(workers=make_inside_workers(0.2), **MAIN))
    held_up = run.altered(workload=replace(run.workload, held_up_s=0.1))
    # 0.1 s of every 0.3 s is the step's own, in the steady iterations
    assert held_up.headspace_pct > 2 * run.headspace_pct > 0.0


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


def saving(saves: Sequence[SaveRecord], **fields: Any) -> Run:
    """A compute-bound run of 40 s beside its saves, each followed by usual waits."""
    run = make_run(host=HOST, loader=LOADER, **fields)
    evidence = make_evidence(run=run, data_wait_s=0.0, step_s=0.25)
    evidence = add_to_end(evidence, checkpoint_save=walls_of(saves))
    return Run(
        replace(
            evidence,
            end=replace(evidence.end, saves=len(saves)),
            save_records=tuple(saves),
            save_aftermaths=tuple(make_aftermath(save.iteration) for save in saves),
        )
    )


def judge_saving(*saves: SaveRecord, **fields: Any) -> Diagnosis:
    return diagnose_run(saving(saves, **fields))


UNREADABLE = {'run_delay_s': None, 'unknown': {'run_delay_s': 'no schedstat'}}


@pytest.mark.parametrize(('count', 'expected'), [(2, 'problem'), (1, 'notice')])
def test_contended_saves_are_a_problem_by_their_net_share(count, expected):
    # 1.6 s each; the run takes 42 or 44 s
    saves = [make_contended(10 * i) for i in range(1, count + 1)]
    found = find(judge_saving(*saves), 'MG304')
    assert found.severity == expected
    assert found.share == pytest.approx(1.6 * count / (40 + 2 * count))


def test_a_delay_that_was_won_back_is_no_problem_and_an_unknown_one_is_not_counted():
    run = saving([make_contended(10 * i) for i in range(1, 9)])
    back = tuple(
        replace(after, usual_wait_s=0.1, waits_s=0.0) for after in run.save_aftermaths
    )
    for aftermaths, share in ((back, 0.0), ((), None)):
        judged = diagnose_run(run.altered(save_aftermaths=aftermaths))
        found = find(judged, 'MG304')
        assert (found.severity, found.share) == ('notice', share)
    some = diagnose_run(run.altered(save_aftermaths=run.save_aftermaths[:1]))
    assert 'the job lost 1.6 s (net, of the 1 whose' in find(some, 'MG304').detail


@pytest.mark.parametrize(
    ('saves', 'said'),
    [
        ([make_contended(10 * i) for i in range(1, 7)], '9.6 s of it because loader'),
        # small delays that add up
        (
            [make_contended(10 * i, cpu_s=0.2, run_delay_s=0.11) for i in range(1, 31)],
            '3.3 s of it',
        ),
        (
            [make_contended(10 * i, cpu_s=0.2, run_delay_s=0.09) for i in range(1, 31)],
            None,
        ),
        (make_calm(20), None),
    ],
)
def test_a_run_bound_by_its_saves_names_what_is_proven_to_have_held_them(saves, said):
    verdict = judge_saving(*saves).verdict
    assert verdict.name == 'save_bound'
    assert (' of it ' in verdict.sentence) is (said is not None)
    assert (said or '') in verdict.sentence


def test_ranks_that_wait_for_the_saves_of_the_first_are_counted():
    first = saving([make_contended(10 * i) for i in range(1, 4)], world_size=8)
    assert '48.0 s of the time of 8 ranks' in find(diagnose_run(first), 'MG301').detail
    judged = with_saves_of(saving([], world_size=8, rank=1), first)
    causes = [entry.cause for entry in diagnose_run(judged).saves]
    assert causes == ['workers'] * 3


@pytest.mark.parametrize(('hub', 'expected'), [(21, 'notice'), (19, None)])
def test_growing_histories_are_noticed_from_a_tenth_on(hub, expected):
    last = make_save(5000, message_hub_bytes=hub * MIB)
    assert severity(judge_saving(*make_calm(3), last), 'MG309') == expected


def test_saves_without_scheduler_statistics_are_said_to_be_unknown():
    saves = [replace(save, **UNREADABLE) for save in make_calm(3)]
    found = find(judge_saving(*saves), 'MG311')
    assert found.severity == 'unknown'
    assert 'no schedstat' in found.detail


def test_a_quota_is_held_against_all_the_time_that_a_window_of_the_host_spans():
    # an interval takes 6 s; the host was read in every fifth
    windows = [make_host_window(throttled_s=s) for s in (0.5, 3.0)]
    for window, expected in zip(windows, (None, 'problem')):
        intervals = tuple(
            make_interval(n, host=None if n % 5 else window) for n in range(1, 11)
        )
        run = Run(RunEvidence('x', make_run(), intervals))
        assert severity(diagnose_run(run), 'MG112') == expected
