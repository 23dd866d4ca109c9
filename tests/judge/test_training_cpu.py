from __future__ import annotations

from typing import Any

import pytest

from fakes.replaced import replace
from fakes.runs import make_inside_workers, make_interval, make_run
from fakes.saves import make_save
from fakes.validations import make_validation
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema import (
    HostLimits,
    IntervalRecord,
    RunEvidence,
    SaveRecord,
    ValidationRecord,
)

SAVE = make_save(cpu_s=0.5, run_delay_s=0.3, workers_cpu_s=0.1, strangers_cpu_s=0.2)
OWN = make_inside_workers(0.1, count=1, iterations=20)
"""Validation's own worker: 1.8 s of CPU."""
VALIDATION = replace(
    make_validation(),
    wall_s=4.0,
    whole_cpu_s=3.0,
    run_delay_s=0.7,
    workers=OWN,
    train_workers_cpu_s=0.2,
    strangers_cpu_s=0.4,
)
HOST = HostLimits(logical_cpus=8, affinity_cpus=8, usable_cores=8.0)


def make_busy(index: int, **fields: Any) -> IntervalRecord:
    """6 s of training, then a save of 0.8 s and a validation of 4 s.

    A step takes 0.2 s of the process's CPU and waits 0.02 s for a core; a batch takes
    a worker 0.3 s of CPU; strangers use half a core.
    """
    record = make_interval(index, workers=make_inside_workers(1 / 3))
    ledger = {**record.ledger_s, 'checkpoint_save': 0.8, 'validation': 4.0}
    process_s = 20 * 0.2 + 0.5 + 3.0
    # the workers made as many batches, some of them meanwhile
    workers_s = 20 * 0.3 + 1.8
    busy_s = process_s + workers_s + 6 * 0.5 + 0.2 + 0.4
    return replace(
        record,
        ledger_s=ledger,
        duration_s=10.8,
        process_cpu_s=process_s,
        process_run_delay_s=20 * 0.02 + 0.3 + 0.7,
        system_cpu_pct=100 * busy_s / 10.8 / 8,
        **fields,
    )


def fold(
    *intervals: IntervalRecord,
    save: SaveRecord = SAVE,
    validation: ValidationRecord = VALIDATION,
) -> Run:
    """A run in whose intervals but the first there were such a save and validation."""
    last = [record.iteration for record in intervals]
    evidence = RunEvidence(
        'x',
        make_run(host=HOST),
        intervals,
        save_records=tuple(replace(save, iteration=i) for i in last),
        validations=tuple(replace(validation, iteration=i) for i in last),
    )
    return Run(evidence)


BUSY = (make_interval(0), *(make_busy(index) for index in range(1, 5)))


def test_what_saves_and_validations_used_is_taken_off():
    summary = fold(*BUSY)
    assert summary.main_cpu_s == pytest.approx(0.2)
    assert summary.main_run_delay_s == pytest.approx(0.02)
    assert summary.process_cpu_cores == pytest.approx(4.0 / 6.0)
    assert summary.external_cpu_cores == pytest.approx(0.5)
    # of the training alone: the process, workers and strangers
    workers_s = 20 * 0.3 - 0.1 - 0.2
    assert summary.system_cpu_pct == pytest.approx(100 * (4 + workers_s + 3) / 6 / 8)
    assert summary.cpu_aside_pct is None
    assert 'CPU' not in summary.unknown


def test_an_only_interval_that_ends_with_a_save_is_used():
    summary = fold(make_busy(0))
    assert summary.main_cpu_s == pytest.approx(0.2)


def test_calm_intervals_are_taken_where_there_are_enough():
    calm = make_interval(9, process_cpu_s=2.0, workers=make_inside_workers(0.4))
    assert fold(*BUSY, calm).main_cpu_s == pytest.approx(0.1)
    few = make_interval(9, iterations=5, process_cpu_s=5 * 0.2)
    # the four intervals with saves are surer than five iterations
    assert fold(*BUSY, few).main_cpu_s == pytest.approx(0.2)


def test_those_of_the_warm_up_are_not_asked():
    first = replace(make_busy(0), process_cpu_s=99.0)
    evidence = RunEvidence(
        'x',
        make_run(host=HOST),
        (first, make_busy(1), make_busy(2)),
        save_records=tuple(
            replace(SAVE, iteration=i, cpu_s=cpu_s)
            for i, cpu_s in ((10, 9.0), (40, 0.5), (60, 0.5))
        ),
        validations=tuple(replace(VALIDATION, iteration=i) for i in (10, 40, 60)),
    )
    assert Run(evidence).main_cpu_s == pytest.approx(0.2)


@pytest.mark.parametrize('name', ['validation', 'save'])
def test_without_their_cpu_it_is_said_why(name: str):
    unknown: Any = {
        'validation': replace(VALIDATION, whole_cpu_s=None),
        'save': replace(SAVE, cpu_s=None),
    }
    summary = fold(*BUSY, **{name: unknown[name]})
    assert summary.main_cpu_s is None
    assert summary.process_cpu_cores is None
    assert summary.unknown['CPU'] == (
        'every interval holds a save or a validation, and what CPU they used was not '
        'recorded'
    )


def test_a_small_part_of_unknown_cpu_is_left_in_and_named():
    records = [make_interval(0)]
    for index in range(1, 5):
        record = make_interval(index, process_cpu_s=20 * 0.2 + 0.1)
        ledger = {**record.ledger_s, 'validation': 0.3}
        records.append(replace(record, ledger_s=ledger, duration_s=6.3))
    unknown = replace(VALIDATION, whole_cpu_s=None)
    summary = fold(*records, validation=unknown)
    assert summary.main_cpu_s == pytest.approx(0.205)
    assert summary.cpu_aside_pct == pytest.approx(100 * 0.3 / 6.3)
    # workers of the validation would pass for strangers
    assert summary.external_cpu_cores is None


def test_an_unknown_wait_for_cores_in_them_is_not_taken_for_the_steps():
    summary = fold(*BUSY, validation=replace(VALIDATION, run_delay_s=None))
    assert summary.main_cpu_s == pytest.approx(0.2)
    assert summary.main_run_delay_s is None


def test_strangers_are_unknown_where_those_of_validations_are():
    summary = fold(*BUSY, validation=replace(VALIDATION, workers=None))
    assert summary.main_cpu_s == pytest.approx(0.2)
    assert summary.external_cpu_cores is None


def test_starts_of_workers_have_their_part_of_the_wait_for_cores():
    record = make_interval(1, process_cpu_s=4.0, process_run_delay_s=0.8)
    ledger = {**record.ledger_s, 'startup': 2.0}
    record = replace(record, ledger_s=ledger, duration_s=8.0)
    assert fold(make_interval(0), record).main_run_delay_s == pytest.approx(0.03)


def test_without_intervals_it_is_said():
    assert fold().unknown['CPU'] == 'no interval was recorded'
