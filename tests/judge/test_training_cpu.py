"""CPU of plain training beside saves and validations, planted with what each used."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.replaced import replace
from fakes.runs import (
    make_evidence,
    make_inside_workers,
    make_interval,
    make_run,
    make_workers,
)
from fakes.saves import make_save
from fakes.validations import make_validation
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema.recorded import HostLimits, IntervalRecord
from mmgpu_hooks.schema.run import RunEvidence

SAVE = make_save(cpu_s=0.5, run_delay_s=0.3, workers_cpu_s=0.1, other_cpu_s=0.2)
OWN = make_inside_workers(0.1, count=1, iterations=20)
"""Validation's own worker: 1.8 s of CPU."""
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
    """6 s of training, then a save of 0.8 s and a validation of 4 s.

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
    """A run with such a save and validation in each of its intervals."""
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
    assert run.main_cpu_s == pytest.approx(0.2)
    assert run.main_run_delay_s == pytest.approx(0.02)
    assert run.process_cpu_cores == pytest.approx(4.0 / 6.0)
    assert run.external_cpu_cores == pytest.approx(0.5)
    assert 'CPU' not in run.unknown
    assert run_of(make_busy(0)).main_cpu_s == pytest.approx(0.2)


def test_calm_intervals_are_taken_where_there_are_enough():
    calm = make_interval(9, process_cpu_s=2.0, workers=make_inside_workers(0.4))
    assert run_of(*BUSY, calm).main_cpu_s == pytest.approx(0.1)
    few = make_interval(9, iterations=5, process_cpu_s=5 * 0.2)
    # the four intervals with saves are surer than five iterations
    assert run_of(*BUSY, few).main_cpu_s == pytest.approx(0.2)


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
    assert [name for name in known if getattr(run, name) is None] == []
    assert [name for name in unknown if getattr(run, name) is not None] == []
    assert ('CPU' in run.unknown) is ('main_cpu_s' in unknown)


def test_starting_workers_has_its_part_of_the_cpu_and_of_the_wait_for_cores():
    # 2 s of starting, of which 1.3 s are CPU; the first wait is 0.5 s beyond a usual
    firsts = {'first_waits': 1, 'first_wait_s': 0.6}
    one = make_interval(1, process_cpu_s=5.3, process_run_delay_s=0.8, **firsts)
    one = replace(one, ledger_s={**one.ledger_s, 'startup': 2.5}, duration_s=10.0)
    run = run_of(make_interval(0), one)
    assert run.main_cpu_s == pytest.approx(0.2)
    assert run.main_run_delay_s == pytest.approx(0.75 * 0.8 / 20)


def test_the_waits_are_left_out_and_unknown_workers_leave_others_unknown():
    run = Run(make_evidence(3, process_cpu_s=6.0, data_wait_cpu_s=1.0))
    assert run.main_cpu_s == pytest.approx(5.0 / 20)
    assert run.data_wait_cpu_share == pytest.approx(1.0 / 2.0)
    assert run.external_cpu_cores is None
    beside = make_evidence(3, process_cpu_s=4.0, workers=make_workers(0.1))
    assert Run(beside).external_cpu_cores == 0.0
    assert 'not recorded' in run_of().unknown['CPU']
