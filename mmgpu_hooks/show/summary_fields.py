"""Turns a verdict into fields that an experiment tracker shows for a run; no I/O."""

from __future__ import annotations

from mmgpu_hooks.schema.recorded import VerdictRecord

_PREFIX = 'mmgpu/'
_NO_CHANGE = 'no change'


def list_summary_fields(verdict: VerdictRecord) -> dict[str, str | float]:
    """Lists fields that an experiment tracker shows for a run: values by name.

    As everything that other programs read they are English in every language. What is
    unknown is left out.

    ``mmgpu/verdict``, ``mmgpu/confidence``
        as in ``--format json``, such as ``data_bound_workers`` and ``high``
    ``mmgpu/recommendation``
        changed settings, such as ``train_dataloader.num_workers 0 -> 8``, with commas
        between several; ``no change`` where none is recommended
    ``mmgpu/ledger/data_wait_pct`` and one for each other part of the time ledger
        per cent of the run's time, from building the Runner to the last iteration
    ``mmgpu/saved_hours``
        predicted hours that all changes together would have saved; with
        ``saved_low_hours`` and ``saved_high_hours``, the interval that holds the truth
        9 times in 10
    """
    changes = [
        f'{change.key} {change.old} -> {change.new}' for change in verdict.changes
    ]
    figures = {
        **{f'ledger/{part}_pct': share for part, share in verdict.ledger_pct.items()},
        'saved_hours': verdict.saved_hours,
        'saved_low_hours': verdict.saved_low_hours,
        'saved_high_hours': verdict.saved_high_hours,
    }
    known = {name: float(value) for name, value in figures.items() if value is not None}
    fields: dict[str, str | float] = {
        'verdict': verdict.verdict,
        'confidence': verdict.confidence,
        'recommendation': ', '.join(changes) or _NO_CHANGE,
        **known,
    }
    return {f'{_PREFIX}{name}': value for name, value in fields.items()}
