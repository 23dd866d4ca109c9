"""Tests the verdict record: judged and predicted values with their units."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fakes.runs import make_evidence, make_run
from fakes.saves import HOST, LOADER, make_contended_ones, with_saves
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.verdict import diagnose_run
from mmgpu_hooks.recommend.verdict_record import judge_as_record
from mmgpu_hooks.schema.lines import decode_line, encode_line
from mmgpu_hooks.schema.recorded import LoaderSettings, VerdictRecord

NO_WORKERS = LoaderSettings(
    num_workers=0, persistent_workers=False, batch_size=4, batches_per_epoch=100
)
WAITS: dict[str, Any] = {
    'data_wait_s': 0.3,
    'data_wait_cpu_s': 6.0,
    'process_cpu_s': 10.0,
}


def judge(run: Run, *, is_final: bool = True) -> VerdictRecord:
    record = judge_as_record(run, diagnose_run(run), is_final=is_final)
    # it stands on a line of the evidence
    assert decode_line(encode_line(record)) == record
    return record


def test_a_verdict_has_hours_their_parts_and_what_the_changes_save():
    meta = make_run(loader=NO_WORKERS, device='cuda', world_size=4, slurm_job_id=4711)
    run = Run(make_evidence(run=meta, **WAITS))
    record = judge(run)
    assert record.verdict == 'data_bound_workers'
    assert record.is_final
    hours = run.figures.duration_s / 3600
    assert record.training_hours == hours
    assert record.gpu_hours == 4 * hours
    assert record.iterations == run.figures.iterations
    assert record.slurm_job_id == 4711
    assert math.isclose(sum(record.ledger_pct.values()), 100)
    assert math.isclose(
        record.ledger_pct['data_wait'], 100 * run.figures.part_share('data_wait')
    )
    changes = {change.key: (change.old, change.new) for change in record.changes}
    assert changes == {
        'train_dataloader.num_workers': (0, 2),
        'train_dataloader.persistent_workers': (False, True),
    }
    assert record.saved_low_hours < record.saved_hours < record.saved_high_hours
    # an iteration of 0.5 s is predicted to take 0.204 s
    assert record.saved_hours == pytest.approx(0.59 * hours, rel=0.1)


def test_on_the_cpu_no_gpu_hours_pass_and_without_changes_nothing_is_saved():
    record = judge(Run(make_evidence(data_wait_s=0.001, step_s=0.299)), is_final=False)
    assert (record.verdict, record.gpu_hours) == ('compute_bound', 0.0)
    assert (record.changes, record.saved_hours, record.saved_low_hours) == (
        (),
        None,
        None,
    )
    assert record.slurm_job_id is None
    assert b'is_final' not in encode_line(record)


def test_too_few_iterations_are_a_verdict_too():
    record = judge(Run(make_evidence(intervals=1, iterations=10)))
    assert (record.verdict, record.changes) == ('not_enough_evidence', ())


def test_what_niced_workers_save_counts():
    meta = make_run(host=HOST, loader=LOADER)
    evidence = make_evidence(run=meta, data_wait_s=0.0)
    record = judge(Run(with_saves(evidence, make_contended_ones(4))))
    assert [change.new for change in record.changes] == [10]
    assert 0 < record.saved_hours == record.saved_low_hours < record.training_hours
