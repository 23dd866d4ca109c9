"""Trains one setting after another for a short while, and sets them side by side."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path

from mmgpu_hooks.experiment.sweep_ledger import KeptTrials, SweepLedger
from mmgpu_hooks.experiment.sweep_plan import SweepJob, folder_name
from mmgpu_hooks.experiment.sweep_progress import Progress, SweepProgress
from mmgpu_hooks.experiment.sweep_trials import TRIALS_FOLDER, train_settings
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.measure.clock import monotonic_s
from mmgpu_hooks.recommend.sweep_choice import choose_best
from mmgpu_hooks.recommend.sweep_rows import (
    choose_calibrations,
    fit_sweep_workload,
    predict_rows,
)
from mmgpu_hooks.schema import (
    LoaderWorkload,
    NoPrediction,
    Sweep,
    SweepRow,
    SweepSetting,
)
from mmgpu_hooks.schema.run_folder import EvidenceError

_ALIKE = 2
"""Trials, the first ones, that fail alike: the others would fail alike too."""


class SweepError(Exception):
    """The config cannot be swept; one sentence for the user."""


def run_sweep(
    job: SweepJob, ledger: SweepLedger, kept: KeptTrials, on_progress: Progress
) -> Sweep:
    """Train every setting that is not known yet, in random order.

    A trial that crashes, hangs or runs out of memory is a row of the table. Ctrl-C
    ends what is on its way, and what was measured is judged. Nothing is left running.

    Args:
        job: What to train.
        ledger: Takes each trial as soon as it has ended.
        kept: What need not be trained again.
        on_progress: Told what goes on.

    Raises:
        SweepError: If the first trials fail alike, or all of them fail.
        OSError: If a folder, a process or the ledger's line cannot be made.
    """
    begin_s = monotonic_s()
    rows = {row.setting: row for row in kept.rows}
    order = order_settings(
        [setting for setting in job.settings if setting not in rows], job.seed
    )
    is_interrupted = False
    whole, at_once = len(job.settings), max(len(job.cards), 1)
    told = SweepProgress(on_progress, whole, len(rows), at_once)
    try:
        with contextlib.closing(train_settings(job, order, told)) as trials:
            for row in trials:
                ledger.append(row, job.identity, job.limits)
                rows[row.setting] = row
                told.add(row.seconds)
                _refuse_failing(job, list(rows.values()))
    except KeyboardInterrupt:
        is_interrupted = True
    judged = _predict(job, [rows[one] for one in job.settings if one in rows])
    return Sweep(
        rows=tuple(judged),
        asked=len(job.settings),
        best=choose_best(judged),
        seed=job.seed,
        seconds=monotonic_s() - begin_s,
        is_interrupted=is_interrupted,
        ranks=job.ranks,
        notes=kept.notes,
    )


def order_settings(settings: Sequence[SweepSetting], seed: int) -> list[SweepSetting]:
    """A random order, whose first two have as little in common as any two can.

    A drift of the machine must not look like the effect of a setting. And where both of
    the first two fail, it is not for the batch size or the precision of one of them.

    Args:
        settings: To be trained.
        seed: Of the order.
    """
    order = list(settings)
    random.Random(seed).shuffle(order)
    if order:
        second = max(order, key=lambda one: _count_differences(order[0], one))
        if second != order[0]:
            order.remove(second)
            order.insert(1, second)
    return order


def _count_differences(one: SweepSetting, other: SweepSetting) -> int:
    return sum(mine != its for mine, its in zip(astuple(one), astuple(other)))


def _refuse_failing(job: SweepJob, rows: Sequence[SweepRow]) -> None:
    """It is the config that does not train, not one setting of it."""
    if any(row.status != 'failed' for row in rows):
        return
    is_alike = len(rows) == _ALIKE and len({row.error for row in rows}) == 1
    if is_alike or len(rows) == len(job.settings):
        row = rows[-1]
        raise SweepError(
            f'{job.config}: expected a config that trains, found that '
            f'{len(rows)} of {len(rows)} trial(s) failed, with {row.setting.name}: '
            f'{row.error}; the whole output is in '
            f'{job.folder / TRIALS_FOLDER / folder_name(row.setting)}.'
        )


def _predict(job: SweepJob, rows: Sequence[SweepRow]) -> list[SweepRow]:
    chosen = choose_calibrations(rows)
    by_setting = {row.setting: row for row in rows}
    workloads: dict[SweepSetting, LoaderWorkload | NoPrediction] = {}
    for setting in dict.fromkeys(chosen.values()):
        row = by_setting[setting]
        run = _read_kept(job.folder, row)
        workloads[setting] = fit_sweep_workload(run, row.warm_up)
    return predict_rows(rows, chosen, workloads)


def _read_kept(folder: Path, row: SweepRow) -> Run | None:
    if row.evidence is None:
        return None
    try:
        return Run.read(folder / row.evidence)
    except (EvidenceError, OSError):
        return None
