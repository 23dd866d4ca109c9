"""Trains one setting after another for a short while, and sets them side by side."""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

from mmgpu_hooks.evidence.reader import read_evidence
from mmgpu_hooks.evidence.run_folder import EvidenceError
from mmgpu_hooks.experiments.sweep_ledger import KeptTrials, SweepLedger
from mmgpu_hooks.experiments.sweep_plan import folder_name, make_spec, plan_pace
from mmgpu_hooks.experiments.sweep_trial import (
    TrialLimits,
    find_evidence,
    run_sweep_trial,
)
from mmgpu_hooks.recommendation.sweep_choice import choose_best
from mmgpu_hooks.recommendation.sweep_rows import (
    choose_calibrations,
    fit_sweep_workload,
    fold_sweep_row,
    predict_rows,
)
from mmgpu_hooks.records import (
    Estimate,
    LoaderWorkload,
    NoPrediction,
    RunEvidence,
    Sweep,
    SweepRow,
    SweepSetting,
)
from mmgpu_hooks.telemetry.clock import monotonic_s

TRIALS_FOLDER = 'trials'
_ALIKE = 2
"""Trials that fail alike before any was measured: the others would fail alike too."""

Progress = Callable[[str, float], None]
"""Called with what goes on and the share of the trials that is done."""


class SweepError(Exception):
    """The config cannot be swept; one sentence for the user."""


@dataclass(frozen=True)
class SweepJob:
    """What is to be trained, and where."""

    config: str
    """Absolute."""
    folder: Path
    """Of the sweep; absolute."""
    settings: Sequence[SweepSetting]
    limits: TrialLimits
    identity: Mapping[str, Any]
    lengthened: dict[str, Any] = field(default_factory=dict)
    """Settings that keep a short training from ending early."""
    saves: bool = False
    seed: int = 0
    """Of the order."""


def run_sweep(
    job: SweepJob, ledger: SweepLedger, kept: KeptTrials, on_progress: Progress
) -> Sweep:
    """Train every setting that is not known yet, in random order, one at a time.

    A trial that crashes, hangs or runs out of memory is a row of the table. Ctrl-C
    ends the trial that is on its way, and what was measured is judged. Nothing is left
    running.

    Args:
        job: What to train.
        ledger: Takes each trial as soon as it has ended.
        kept: What need not be trained again.
        on_progress: Told what goes on.

    Raises:
        SweepError: If the first trials fail alike, or no trial does anything but fail.
        OSError: If a folder, a process or the ledger's line cannot be made.
    """
    begin_s = monotonic_s()
    rows = {row.setting: row for row in kept.rows}
    order = [setting for setting in job.settings if setting not in rows]
    # a drift of the machine must not look like the effect of a setting
    random.Random(job.seed).shuffle(order)
    is_interrupted = False
    told = _Told(on_progress, len(job.settings), len(rows))
    failures: list[str | None] = []
    try:
        for setting in order:
            row = _train(job, setting, told)
            ledger.append(row, job.identity, job.limits)
            rows[setting] = row
            told.add(row.seconds)
            if row.status == 'failed':
                failures.append(row.error)
            _refuse_failing(job, rows.values(), failures)
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
        notes=kept.notes,
    )


class _Told:
    """Passes on how far the sweep is, and how long it still takes.

    Args:
        on_progress: Whom to tell.
        whole: Trials in all.
        kept: Those that an earlier start had measured.
    """

    def __init__(self, on_progress: Progress, whole: int, kept: int) -> None:
        self._on_progress = on_progress
        self._whole, self._done = whole, kept
        self._trained, self._seconds = 0, 0.0

    def add(self, seconds: float) -> None:
        """Count a trial that is over."""
        self._done += 1
        self._trained += 1
        self._seconds += seconds

    @contextlib.contextmanager
    def of(self, setting: SweepSetting) -> Iterator[Callable[[Estimate | None], None]]:
        """What to call while a setting is being trained."""
        begin_s = monotonic_s()

        def tell(iter_s: Estimate | None) -> None:
            words = f'{self._done + 1} of {self._whole}: {setting.name}'
            if iter_s is not None:
                pct = 100 * iter_s.half_width / iter_s.value
                words += f', {iter_s.value:.3g} s +-{pct:.0f} %'
            self._on_progress(
                words + self._left(monotonic_s() - begin_s), self._done / self._whole
            )

        tell(None)
        yield tell

    def _left(self, passed_s: float) -> str:
        """By what the trials took so far; unknown during the first."""
        if not self._trained:
            return ''
        each_s = self._seconds / self._trained
        left_s = (self._whole - self._done) * each_s - min(passed_s, each_s)
        return f'; about {max(left_s / 60, 0.1):.1f} min left'


def _train(job: SweepJob, setting: SweepSetting, told: _Told) -> SweepRow:
    pace = plan_pace(setting)
    folder = job.folder / TRIALS_FOLDER / folder_name(setting)
    # an older trial's evidence must not be taken for this one's
    shutil.rmtree(folder, ignore_errors=True)
    spec = make_spec(
        setting,
        config=job.config,
        folder=str(folder),
        lengthened=job.lengthened,
        saves=job.saves,
    )
    try:
        with told.of(setting) as tell:
            outcome = run_sweep_trial(spec, pace, job.limits, on_progress=tell)
    finally:
        # the next one needs the room
        for checkpoint in folder.glob('*.pth'):
            checkpoint.unlink(missing_ok=True)
    path = outcome.evidence
    row = SweepRow(
        setting,
        outcome.status,
        error=outcome.error,
        seconds=outcome.seconds,
        is_settled=outcome.is_settled,
        is_loss_finite=outcome.is_loss_finite,
        memory_peak_bytes=outcome.peak_rss_bytes,
        memory_source='process_rss' if outcome.peak_rss_bytes else None,
        evidence=str(path.relative_to(job.folder)) if path is not None else None,
        warm_up=pace.warm_up,
    )
    return fold_sweep_row(row, find_evidence(folder))


def _refuse_failing(
    job: SweepJob, rows: Sequence[SweepRow] | Any, failures: Sequence[str | None]
) -> None:
    """It is the config that does not train, not one setting of it."""
    rows = list(rows)
    if any(row.status != 'failed' for row in rows):
        return
    alike = failures[-_ALIKE:]
    is_alike = len(alike) == _ALIKE and len(set(alike)) == 1
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
        evidence = _read_kept(job.folder, row)
        workloads[setting] = fit_sweep_workload(evidence, row.warm_up)
    return predict_rows(rows, chosen, workloads)


def _read_kept(folder: Path, row: SweepRow) -> RunEvidence | None:
    if row.evidence is None:
        return None
    try:
        return read_evidence(folder / row.evidence)
    except (EvidenceError, OSError):
        return None
