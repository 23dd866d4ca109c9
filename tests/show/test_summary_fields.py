"""Tests the verdict's fields for W&B and MLflow."""

from __future__ import annotations

from typing import Any

from mmgpu_hooks.schema.recorded import RecommendedChange, VerdictRecord
from mmgpu_hooks.show.summary_fields import list_summary_fields

WORKERS = RecommendedChange(key='train_dataloader.num_workers', old=0, new=8)
PERSISTENT = RecommendedChange(
    key='val_dataloader.persistent_workers', old=False, new=True
)


def make_verdict(**fields: Any) -> VerdictRecord:
    return VerdictRecord(
        verdict='data_bound_workers',
        confidence='high',
        iterations=5000,
        training_hours=1.0,
        **fields,
    )


def test_texts_and_figures_have_names_of_their_own():
    verdict = make_verdict(
        changes=(WORKERS, PERSISTENT),
        ledger_pct={'data_wait': 53.5, 'step': 30},
        saved_hours=0.5,
        saved_low_hours=0.25,
        saved_high_hours=0.75,
    )
    assert list_summary_fields(verdict) == {
        'mmgpu/verdict': 'data_bound_workers',
        'mmgpu/confidence': 'high',
        'mmgpu/recommendation': (
            'train_dataloader.num_workers 0 -> 8, '
            'val_dataloader.persistent_workers False -> True'
        ),
        'mmgpu/ledger/data_wait_pct': 53.5,
        'mmgpu/ledger/step_pct': 30.0,
        'mmgpu/saved_hours': 0.5,
        'mmgpu/saved_low_hours': 0.25,
        'mmgpu/saved_high_hours': 0.75,
    }


def test_what_is_unknown_is_left_out():
    assert list_summary_fields(make_verdict()) == {
        'mmgpu/verdict': 'data_bound_workers',
        'mmgpu/confidence': 'high',
        'mmgpu/recommendation': 'no change',
    }
