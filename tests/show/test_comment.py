"""Tests a SLURM job's comment: verdict, share of run time, recommended changes."""

from __future__ import annotations

from typing import Any

import pytest

from mmgpu_hooks.judge.verdict_names import VERDICTS
from mmgpu_hooks.schema.recorded import RecommendedChange, VerdictRecord
from mmgpu_hooks.show.comment import phrase_comment

LEDGER = {'data_wait': 53.6, 'step': 30.2, 'checkpoint_save': 12.4, 'startup': 3.8}
WORKERS = RecommendedChange(key='train_dataloader.num_workers', old=0, new=8)
PERSISTENT = RecommendedChange(
    key='val_dataloader.persistent_workers', old=False, new=True
)


def make_verdict(name: str, **fields: Any) -> VerdictRecord:
    return VerdictRecord(
        verdict=name,
        confidence='high',
        iterations=5000,
        training_hours=1.0,
        **{'ledger_pct': LEDGER, **fields},
    )


@pytest.mark.parametrize(
    ('name', 'changes', 'said'),
    [
        ('data_bound_workers', (WORKERS,), 'data-bound 54 %, num_workers 0 -> 8'),
        (
            'data_bound',
            (WORKERS, PERSISTENT),
            'data-bound 54 %, num_workers 0 -> 8, val persistent_workers False -> True',
        ),
        ('compute_bound', (), 'compute-bound 30 %'),
        ('save_bound', (), 'bound by checkpoint saves 12 %'),
        ('startup_bound', (), 'bound by starts of the loader 4 %'),
        ('cpu_oversubscribed', (), 'CPU oversubscribed'),
        ('memory_bound', (), 'memory runs out'),
    ],
)
def test_a_comment_says_what_bounds_a_run_and_what_would_help(name, changes, said):
    assert phrase_comment(make_verdict(name, changes=changes)) == f'mmgpu: {said}'


def test_without_the_ledger_it_has_no_share():
    verdict = make_verdict('data_bound', ledger_pct={})
    assert phrase_comment(verdict) == 'mmgpu: data-bound'


def test_too_little_evidence_and_a_verdict_of_another_version_say_nothing():
    assert phrase_comment(make_verdict('not_enough_evidence')) is None
    assert phrase_comment(make_verdict('of_tomorrow')) is None


@pytest.mark.parametrize(
    'name', [name for name in VERDICTS if name != 'not_enough_evidence']
)
def test_each_fits_into_one_column_of_sacct(name):
    long = RecommendedChange(key='a.b', old='|' * 300, new='c')
    text = phrase_comment(make_verdict(name, changes=(long,)))
    assert text.startswith('mmgpu: ')
    assert '|' not in text
    assert len(text) <= 250
