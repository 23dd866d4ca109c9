"""Trains the settings of a sweep, one at a time or one on each of several cards."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from queue import SimpleQueue
from typing import Callable

from mmgpu_hooks.experiment.cards import VARIABLE
from mmgpu_hooks.experiment.sweep_plan import (
    SweepJob,
    folder_name,
    make_spec,
    plan_pace,
)
from mmgpu_hooks.experiment.sweep_progress import SweepProgress
from mmgpu_hooks.experiment.sweep_trial import (
    SweepOutcome,
    read_run,
    run_sweep_trial,
)
from mmgpu_hooks.recommend.sweep_rows import fold_sweep_row
from mmgpu_hooks.schema import SweepRow, SweepSetting

TRIALS_FOLDER = 'trials'

_LOOK_S = 0.2


class _StoppedError(Exception):
    """Another thread wants this trial to end."""


def train_settings(
    job: SweepJob, order: Sequence[SweepSetting], told: SweepProgress
) -> Generator[SweepRow, None, None]:
    """Train them; nothing is left running when the iterator is closed.

    Args:
        job: What they have in common.
        order: In which they are begun.
        told: Told what goes on.

    Yields:
        A row as soon as its trial has ended.

    Raises:
        OSError: If a folder or a process cannot be made.
        KeyboardInterrupt: As pressed; the trainings are ended first.
    """
    if job.cards:
        yield from _train_on_cards(job, order, told)
        return
    for setting in order:
        with told.of(setting) as tell:
            yield _train(job, setting, {}, tell)


def _train_on_cards(
    job: SweepJob, order: Sequence[SweepSetting], told: SweepProgress
) -> Generator[SweepRow, None, None]:
    stop = threading.Event()
    cards: SimpleQueue[str] = SimpleQueue()
    for card in job.cards:
        cards.put(card)

    def train(setting: SweepSetting) -> SweepRow:
        card = cards.get()
        try:
            with told.of(setting) as tell:

                def tell_unless_stopped(outcome: SweepOutcome) -> None:
                    if stop.is_set():
                        raise _StoppedError
                    tell(outcome)

                return _train(job, setting, {VARIABLE: card}, tell_unless_stopped)
        finally:
            cards.put(card)

    with ThreadPoolExecutor(len(job.cards)) as pool:
        left: set[Future[SweepRow]] = {pool.submit(train, one) for one in order}
        try:
            while left:
                # looked up now and then: only so is Ctrl-C heard
                done, left = wait(left, _LOOK_S, FIRST_COMPLETED)
                for future in done:
                    yield future.result()
        finally:
            stop.set()
            for future in left:
                future.cancel()


def _train(
    job: SweepJob,
    setting: SweepSetting,
    environ: Mapping[str, str],
    tell: Callable[[SweepOutcome], None],
) -> SweepRow:
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
        ranks=job.ranks,
    )
    try:
        outcome = run_sweep_trial(
            spec, pace, job.limits, on_progress=tell, environ=environ
        )
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
    return fold_sweep_row(row, read_run(folder))
