"""The summary that training ends with."""

from __future__ import annotations

import os

from mmgpu_hooks.records import Diagnosis, RunSummary
from mmgpu_hooks.report.figures import describe_run


def render_training_summary(summary: RunSummary, diagnosis: Diagnosis) -> str:
    """About ten lines: the verdict first, the command to run next last."""
    verdict = diagnosis.verdict
    rows = [
        ('verdict', f'{verdict.sentence} ({verdict.confidence} confidence)'),
        *describe_run(summary),
        ('ended', f'{summary.status} after {summary.iterations} iterations'),
        ('next', f'mmgpu recommend {_shown(summary.run.work_dir)}'),
    ]
    lines = [f'  {label:<10} {text}' for label, text in rows]
    return '\n'.join(['GPUEfficiencyHook summary', *lines])


def _shown(path: str | None) -> str:
    if path is None:
        return '<work_dir>'
    relative = os.path.relpath(path)
    return path if relative.startswith('..') else relative
