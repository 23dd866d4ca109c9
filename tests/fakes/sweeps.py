"""Synthetic rows of a sweep with values set by the test."""

from __future__ import annotations

from typing import Any

from fakes.replaced import replace
from mmgpu_hooks.experiment.sweep_judge import choose_best
from mmgpu_hooks.schema.judged import Estimate
from mmgpu_hooks.schema.text import phrase
from mmgpu_hooks.schema.tried import Sweep, SweepRow, SweepSetting

MIB = 2**20


def make_sweep_row(
    workers: int, iter_s: float | None = 0.5, *, batch: int | None = 4, **fields: Any
) -> SweepRow:
    """Returns the row of a measured trial; of a failed one if ``iter_s`` is None.

    Args:
        workers: Of its setting.
        iter_s: Known to 2 %.
        batch: Of its setting.
        **fields: Of the row; ``setting`` takes fields of the setting.
    """
    setting = replace(SweepSetting(workers, batch), **fields.pop('setting', {}))
    if iter_s is None:
        body: dict[str, Any] = {'status': 'failed', 'error': 'ValueError: no'}
    else:
        body = {
            'status': 'completed',
            'seconds': 40.0,
            'iterations': 60,
            'iter_s': Estimate(iter_s, 0.98 * iter_s, 1.02 * iter_s, 6),
            'data_wait_s': 0.2 * iter_s,
            'images_per_s': (batch or 1) / iter_s,
            'memory_peak_bytes': 800 * MIB,
            'cpu_cores': 1.5,
            'most_workers': 2,
            'most_workers_reason': phrase('{cores:g} usable cores', cores=2),
        }
    return SweepRow(setting, **{**body, **fields})


def make_sweep(*rows: SweepRow, **fields: Any) -> Sweep:
    """Returns a sweep over loader settings, with the given rows and the best one."""
    sweep = Sweep(rows, asked=len(rows), best=choose_best(rows), seconds=95.0)
    return replace(sweep, **fields)
