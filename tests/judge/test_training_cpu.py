"""Tests the CPU time of training alone, minus that of saves and validations."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.replaced import replace
from fakes.runs import (
    make_evidence,
    make_inside_workers,
    make_interval,
    make_loader,
    make_run,
    make_workers,
)
from fakes.saves import make_save
from fakes.validations import make_validation
from mmgpu_hooks.judge.ranks import compare_ranks, join_ranks
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.verdict import diagnose_run
from mmgpu_hooks.schema.judged import Finding
from mmgpu_hooks.schema.recorded import HostLimits, IntervalRecord
from mmgpu_hooks.schema.run import RunEvidence

SAVE = make_save(cpu_s=0.5, run_delay_s=0.3, workers_cpu_s=0.1, other_cpu_s=0.2)
OWN = make_inside_workers(0.1, count=1, iterations=20)
"""Measurements of the validation loader's only worker: 1.8 s of CPU time in all."""
VALIDATION = replace(
    make_validation(),
    wall_s=4.0,
    whole_cpu_s=3.0,
    run_delay_s=0.7,
    workers=OWN,
    train_workers_cpu_s=0.2,
    other_cpu_s=0.4,
)
HOST = HostLimits(logical_cpus=8, affinity_cpus=8, usable_cores=8.0)


def make_busy(index: int, **fields: Any) -> IntervalRecord:
    """Returns an interval of 6 s training, a save of 0.8 s and a validation of 4 s.

    A step takes 0.2 s of the process's CPU and waits 0.02 s for a core; a batch takes
    a worker 0.3 s of CPU; other programs use half a core.
    """
    record = make_interval(index, workers=make_inside_workers(1 / 3), **fields)
    ledger = {**record.ledger_s, 'checkpoint_save': 0.8, 'validation': 4.0}
    process_s = 20 * 0.2 + 0.5 + 3.0
    # the workers made as many batches, some of them meanwhile
    busy_s = process_s + 20 * 0.3 + 1.8 + 6 * 0.5 + 0.2 + 0.4
    return replace(
        record,
        ledger_s=ledger,
        duration_s=10.8,
        process_cpu_s=process_s,
        process_run_delay_s=20 * 0.02 + 0.3 + 0.7,
        system_cpu_pct=100 * busy_s / 10.8 / 8,
    )


def run_of(*intervals: IntervalRecord, save=SAVE, validation=VALIDATION) -> Run:
    """Returns a run with a save and a validation in each interval."""
    last = [record.iteration for record in intervals]
    return Run(
        RunEvidence(
            'x',
            make_run(host=HOST),
            intervals,
            save_records=tuple(replace(save, iteration=i) for i in last),
            validations=tuple(replace(validation, iteration=i) for i in last),
        )
    )


BUSY = (make_interval(0), *(make_busy(index) for index in range(1, 5)))


def test_what_saves_and_validations_used_is_taken_off():
    run = run_of(*BUSY)
    assert run.figures.main_cpu_s == pytest.approx(0.2)
    assert run.figures.main_run_delay_s == pytest.approx(0.02)
    assert run.figures.process_cpu_cores == pytest.approx(4.0 / 6.0)
    assert run.figures.external_cpu_cores == pytest.approx(0.5)
    assert 'CPU' not in run.figures.unknown
    assert run_of(make_busy(0)).figures.main_cpu_s == pytest.approx(0.2)


def test_calm_intervals_are_taken_where_there_are_enough():
    calm = make_interval(9, process_cpu_s=2.0, workers=make_inside_workers(0.4))
    assert run_of(*BUSY, calm).figures.main_cpu_s == pytest.approx(0.1)
    few = make_interval(9, iterations=5, process_cpu_s=5 * 0.2)
    # the four intervals with saves are surer than five iterations
    assert run_of(*BUSY, few).figures.main_cpu_s == pytest.approx(0.2)


@pytest.mark.parametrize(
    ('alone', 'known', 'unknown'),
    [
        ({'validation': replace(VALIDATION, whole_cpu_s=None)}, [], ['main_cpu_s']),
        ({'save': replace(SAVE, cpu_s=None)}, [], ['main_cpu_s', 'process_cpu_cores']),
        (
            {'validation': replace(VALIDATION, run_delay_s=None)},
            ['main_cpu_s'],
            ['main_run_delay_s'],
        ),
        (
            {'validation': replace(VALIDATION, workers=None)},
            ['main_cpu_s', 'main_run_delay_s'],
            ['external_cpu_cores'],
        ),
    ],
)
def test_what_was_not_recorded_of_them_leaves_its_figure_unknown(alone, known, unknown):
    run = run_of(*BUSY, **alone)
    assert [name for name in known if getattr(run.figures, name) is None] == []
    assert [name for name in unknown if getattr(run.figures, name) is not None] == []
    assert ('CPU' in run.figures.unknown) is ('main_cpu_s' in unknown)


def test_starting_workers_has_its_part_of_the_cpu_and_of_the_wait_for_cores():
    # 2 s of starting, of which 1.3 s are CPU; the first wait is 0.5 s beyond a usual
    firsts: dict[str, Any] = {'first_waits': 1, 'first_wait_s': 0.6}
    starting = make_interval(1, process_cpu_s=5.3, process_run_delay_s=0.8, **firsts)
    starting = replace(
        starting, ledger_s={**starting.ledger_s, 'startup': 2.5}, duration_s=10.0
    )
    run = run_of(make_interval(0), starting)
    assert run.figures.main_cpu_s == pytest.approx(0.2)
    assert run.figures.main_run_delay_s == pytest.approx(0.75 * 0.8 / 20)


def test_the_waits_are_left_out_and_unknown_workers_leave_others_unknown():
    run = Run(make_evidence(3, process_cpu_s=6.0, data_wait_cpu_s=1.0))
    assert run.figures.main_cpu_s == pytest.approx(5.0 / 20)
    assert run.figures.data_wait_cpu_share == pytest.approx(1.0 / 2.0)
    assert run.figures.external_cpu_cores is None
    beside = make_evidence(3, process_cpu_s=4.0, workers=make_workers(0.1))
    assert Run(beside).figures.external_cpu_cores == 0.0
    assert 'not recorded' in run_of().figures.unknown['CPU']


def make_host_ranks(
    hosts: str, *, busy_pct: float, local: int, **fields: Any
) -> list[Run]:
    """Returns ranks on hosts of 64 CPUs; each letter names a rank's host.

    A rank and its two workers use 1 and 2 cores.
    """
    window = make_inside_workers(0.6, affinity_cpus=64, fetch_cpu_s=0.54)
    window = replace(window, cpu_s=20 * 0.6, thread_cpu_s=0.0)
    used = {
        'process_cpu_s': 20 * 0.3,
        'workers': window,
        'worker_threads': 2,
        'system_cpu_pct': busy_pct,
    }
    host = HostLimits(
        logical_cpus=64, affinity_cpus=64, ranks_on_host=local, usable_cores=64 / local
    )
    runs = [
        Run(
            make_evidence(
                run=make_run(
                    rank=rank,
                    world_size=len(hosts),
                    host=host,
                    hostname=name,
                    loader=make_loader(2),
                ),
                **{**used, **fields},
            )
        )
        for rank, name in enumerate(hosts)
    ]
    return join_ranks(compare_ranks(runs[0], runs[1:]), runs)


def find_code(run: Run, code: str) -> Finding | None:
    return {finding.code: finding for finding in diagnose_run(run).findings}.get(code)


def test_eight_ranks_on_a_host_know_what_is_theirs():
    # 24 cores are the ranks' own, 16 more those of others
    first, *_ = make_host_ranks('a' * 8, busy_pct=100 * 40 / 64, local=8)
    assert first.figures.external_cpu_cores == pytest.approx(16.0)
    assert first.external_share_cores == pytest.approx(2.0)
    found = find_code(first, 'MG107')
    assert found is not None
    assert found.detail == 'Others used 16.0 of 64 CPUs meanwhile.'
    # of its 8 cores it uses 3, and others 2
    idle = find_code(first, 'MG116')
    assert idle is not None and '2.0 of 8 cores, 3.0 are idle' in idle.detail
    assert diagnose_run(first).verdict.confidence == 'low'
    alone, *_ = make_host_ranks('a' * 8, busy_pct=100 * 24 / 64, local=8)
    assert alone.figures.external_cpu_cores == pytest.approx(0.0, abs=1e-6)
    assert find_code(alone, 'MG107') is None
    idle = find_code(alone, 'MG116')
    assert idle is not None and '5.0 are idle' in idle.detail


def test_only_ranks_of_the_same_host_are_joined():
    # 12 cores of each host are its ranks' own
    ranks = make_host_ranks('aaaabbbb', busy_pct=100 * 32 / 64, local=4)
    for rank in (ranks[0], ranks[7]):
        assert rank.figures.external_cpu_cores == pytest.approx(20.0)
    assert find_code(ranks[7], 'MG107') is not None


@pytest.mark.parametrize('missing', [1, 7])
def test_without_a_ranks_file_others_are_unknown(missing):
    every = make_host_ranks('a' * 8, busy_pct=100 * 40 / 64, local=8)
    others = [rank for rank in every[1:] if rank.meta.rank != missing]
    first = Run(every[0].evidence, others)
    assert first.figures.external_cpu_cores is None
    found = find_code(first, 'MG107')
    assert found is not None and found.severity == 'unknown'
    assert 'all 8 ranks on the host, and 7 can be read' in found.detail
    idle = find_code(first, 'MG116')
    assert idle is not None and idle.severity == 'unknown'
    assert 'all 8 ranks' in first.figures.unknown['CPU of other programs']


def test_two_hosts_without_a_name_are_not_taken_for_one():
    ranks = make_host_ranks('aaaabbbb', busy_pct=50.0, local=4)
    nameless = [
        Run(replace(rank.evidence, run=replace(rank.meta, hostname=None)))
        for rank in ranks[:4]
    ]
    first = Run(nameless[0].evidence, nameless[1:])
    assert first.figures.external_cpu_cores is None


def test_ranks_that_ran_one_after_the_other_do_not_share_a_time():
    first, second = make_host_ranks('aa', busy_pct=50.0, local=2)
    later = replace(second.meta, started_unix_s=second.meta.started_unix_s + 200.0)
    first = Run(first.evidence, [Run(replace(second.evidence, run=later))])
    assert 'not measured at the same time' in (first.figures.why_no_external or '')


def test_what_validations_own_workers_used_is_the_ranks():
    ranks = make_host_ranks('aa', busy_pct=100 * 30 / 64, local=2)
    plain = ranks[0].figures.external_cpu_cores or 0.0
    for n, rank in enumerate([*ranks]):
        validating = [
            replace(interval, ledger_s={**interval.ledger_s, 'validation': 4.0})
            for interval in rank.intervals
        ]
        ranks[n] = Run(
            replace(
                rank.evidence, intervals=tuple(validating), validations=(VALIDATION,)
            )
        )
    first = Run(ranks[0].evidence, ranks[1:])
    # 1.8 s of CPU in the 6 s of an interval, on each of two ranks
    assert first.figures.external_cpu_cores == pytest.approx(plain - 2 * 1.8 / 6.0)
