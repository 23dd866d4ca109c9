"""Keeps the trials of a sweep, one JSON line each, so that it can go on later."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from mmgpu_hooks.config.write import verify_output
from mmgpu_hooks.experiment.sweep_plan import TrialLimits
from mmgpu_hooks.schema import TRIAL_STATUSES, SweepRow, SweepSetting

LEDGER_NAME = 'trials.jsonl'
LEDGER_VERSION = 1
"""Raised when a key of a line changes its meaning or goes away."""

_RECOMPUTED = ('predicted', 'unpredicted', 'is_calibration', 'is_reused')


class LedgerError(Exception):
    """The ledger cannot be used; one sentence for the user."""


@dataclass(frozen=True)
class KeptTrials:
    """What an earlier start of a sweep left that still holds."""

    rows: tuple[SweepRow, ...] = ()
    notes: tuple[str, ...] = ()
    """What was passed over, and why: sentences."""


class SweepLedger:
    """The open ledger of one folder.

    Args:
        descriptor: Of the open file, locked.
        path: Of it.
    """

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor = descriptor
        self.path = path

    def append(
        self, row: SweepRow, identity: Mapping[str, Any], limits: TrialLimits
    ) -> None:
        """Add one trial, in one write.

        Raises:
            OSError: If it cannot be written whole; nothing of it is left then.
        """
        raw = (render_line(row, identity, limits) + '\n').encode()
        end = os.lseek(self._descriptor, 0, os.SEEK_END)
        # what a kill left of a line must not swallow this one
        if end and os.pread(self._descriptor, 1, end - 1) != b'\n':
            raw = b'\n' + raw
        if os.write(self._descriptor, raw) < len(raw):
            os.ftruncate(self._descriptor, end)
            words = 'room for only a part of a line'
            raise OSError(errno.ENOSPC, words, str(self.path))

    def read_lines(self) -> list[str]:
        """All lines that it has."""
        return self.path.read_text(encoding='utf-8', errors='replace').splitlines()

    def clear(self) -> None:
        """Forget every trial."""
        os.ftruncate(self._descriptor, 0)


@contextlib.contextmanager
def open_ledger(folder: Path) -> Iterator[SweepLedger]:
    """Open the ledger of a folder for this process alone; the folder is made.

    Raises:
        LedgerError: If another sweep is at work in the folder.
        OSError: If it cannot be opened.
    """
    # late: Windows has none, and other commands run there
    import fcntl

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LEDGER_NAME
    verify_output(path)
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LedgerError(
                f'expected {folder} for this sweep alone, found that another one is at '
                'work in it; wait for it, or name another folder with --work-dir.'
            ) from error
        yield SweepLedger(descriptor, path)
    finally:
        os.close(descriptor)


def render_line(row: SweepRow, identity: Mapping[str, Any], limits: TrialLimits) -> str:
    """One trial as JSON; what is computed anew each time is left out."""
    body = {k: v for k, v in asdict(row).items() if k not in _RECOMPUTED}
    return msgspec.json.encode(
        {
            'version': LEDGER_VERSION,
            'identity': identity,
            'limits': asdict(limits),
            'row': body,
        }
    ).decode()


def parse_ledger(
    lines: Iterable[str],
    identity: Mapping[str, Any],
    limits: TrialLimits,
    settings: Iterable[SweepSetting],
) -> KeptTrials:
    """Which trials need not be trained again.

    Those that were measured, or ran out of memory or time, under the same config, host
    and environment, and were given as much time as now. A crash may have been mended
    since, so it is tried again.

    Args:
        lines: Of the ledger.
        identity: Of now.
        limits: Of now.
        settings: Those asked for.
    """
    asked, kept = set(settings), {}
    torn, others = 0, 0
    differing: dict[str, None] = {}
    for line in filter(str.strip, lines):
        try:
            body = msgspec.json.decode(line)
            known_limits = msgspec.convert(body['limits'], TrialLimits)
            row = parse_row(body['row'])
            known = dict(body['identity'])
            is_version = body['version'] == LEDGER_VERSION
        except (msgspec.MsgspecError, ValueError, KeyError, TypeError, RecursionError):
            torn += 1
            continue
        if row.setting not in asked:
            continue
        unlike = [name for name in identity if known.get(name) != identity[name]]
        if unlike or not is_version:
            others += 1
            differing.update(dict.fromkeys(unlike or ['version']))
        elif _is_done(row, known_limits, limits):
            kept[row.setting] = replace(row, is_reused=True)
    notes = []
    if others:
        notes.append(
            f'{others} earlier trial(s) are of another {" and ".join(differing)} and '
            'were not reused.'
        )
    if torn:
        notes.append(f'{torn} line(s) of {LEDGER_NAME} could not be read.')
    return KeptTrials(tuple(kept.values()), tuple(notes))


def parse_row(body: Any) -> SweepRow:
    """A row out of its JSON.

    Raises:
        ValueError: If it is none that a trial gives.
    """
    row = msgspec.convert(body, SweepRow)
    found = row.iter_s
    if row.status not in TRIAL_STATUSES:
        raise ValueError(f'expected one of {TRIAL_STATUSES}, found {row.status!r:.40}')
    if found and not (found.value > 0 and found.low <= found.value <= found.high):
        raise ValueError(f'expected an interval, found {found}')
    return row


def _is_done(row: SweepRow, known: TrialLimits, asked: TrialLimits) -> bool:
    if row.status == 'completed':
        return row.is_measured and (
            row.is_settled or known.measure_s >= asked.measure_s
        )
    if row.status == 'timed_out':
        return known.whole_s >= asked.whole_s
    return row.status == 'out_of_memory'
