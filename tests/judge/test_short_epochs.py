"""Epochs so short that each interval holds a save or a validation; and their words."""

from __future__ import annotations

from typing import Any

from fakes.replaced import replace
from fakes.runs import (
    make_evidence,
    make_inside_workers,
    make_interval,
    make_run,
    make_workers,
    steady,
)
from fakes.saves import make_save
from fakes.validations import make_validation
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.verdict import diagnose_run, judge_confidence
from mmgpu_hooks.schema import HostLimits, LoaderSettings, RunEvidence


def short_epochs(**fields: Any) -> Run:
    """Each interval ends with a save of a second and a validation of two."""
    records = []
    for index in range(6):
        record = make_interval(index, process_cpu_s=20 * 0.05 + 0.4 + 1.0, **fields)
        ledger = {**record.ledger_s, 'checkpoint_save': 1.0, 'validation': 2.0}
        records.append(replace(record, ledger_s=ledger, duration_s=9.0))
    made = [make_save(20 * (i + 1), cpu_s=0.4, blocked_s=0.6) for i in range(6)]
    done = [
        replace(make_validation(i), iteration=20 * (i + 1), wall_s=2.0, whole_cpu_s=1.0)
        for i in range(6)
    ]
    run = make_run(host=HostLimits(logical_cpus=8, usable_cores=8.0))
    return Run(
        RunEvidence(
            'x', run, tuple(records), save_records=tuple(made), validations=tuple(done)
        )
    )


def test_short_epochs_that_all_end_with_a_save_are_judged() -> None:
    blocked = replace(make_inside_workers(0.55), batch_cpu=steady(0.02, 20))
    diagnosis = diagnose_run(short_epochs(workers=blocked))
    assert diagnosis.verdict.name == 'data_bound_storage'
    assert diagnosis.verdict.confidence == 'high'
    assert 'MG103' in [f.code for f in diagnosis.findings if f.severity == 'problem']
    untold = [f for f in diagnosis.findings if f.severity == 'unknown']
    # no interval tells it at all here
    assert [f.code for f in untold] == ['MG110']


def test_what_is_unknown_is_said_with_its_true_reason() -> None:
    summary = short_epochs(workers=make_inside_workers(0.55))
    summary = summary.altered(
        main_cpu_s=None, unknown={'CPU': 'nobody looked.', **summary.unknown}
    )
    details = {f.code: f.detail for f in diagnose_run(summary).findings}
    assert (
        details['MG102']
        == details['MG103']
        == details['MG109']
        == (
            'Cannot tell: What the CPU of the training process took per iteration is '
            'unknown: nobody looked.'
        )
    )


def test_saves_within_the_figures_of_cpu_make_them_less_sure() -> None:
    summary = short_epochs(workers=make_workers(0.1)).altered(cpu_aside_pct=5.0)
    assert judge_confidence(summary) == 'medium'


def test_figures_have_the_digits_that_their_share_needs() -> None:
    summary = Run(make_evidence(data_wait_s=0.00143, step_s=0.0062, hooks_s=7e-4))
    details = {f.code: f.detail for f in diagnose_run(summary).findings}
    assert '17 % of an iteration' in details['MG101']
    assert '(1.4 ms of 8.3 ms, mean of' in details['MG101']
    assert details['MG303'] == 'Hooks took 0.112 s (8 % of the run).'


def test_a_loader_that_is_none_of_pytorch_is_said_to_be_unknown() -> None:
    run = make_run(
        loader=LoaderSettings(), unknown={'loader workers': 'batches come from a list'}
    )
    untold = Run(make_evidence(run=run)).why_no_workload
    verdict = diagnose_run(Run(make_evidence(run=run))).verdict
    assert verdict.name == 'data_bound'
    assert 'by a loader whose settings are unknown' in verdict.sentence
    assert untold == (
        'The live settings of the loader are unknown: batches come from a list.'
    )
