"""Reads the evidence files of a training run and of its ranks.

What can be used of the evidence is used, what cannot is counted and said.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, List, NamedTuple, Optional, Tuple

from msgspec.structs import replace

from mmgpu_hooks.schema import recorded
from mmgpu_hooks.schema.lines import (
    LineError,
    check_schema,
    decode_line,
    decode_schema,
    read_lines,
)
from mmgpu_hooks.schema.regular import read_end
from mmgpu_hooks.schema.run_folder import EvidenceError
from mmgpu_hooks.schema.text import Text, phrase
from mmgpu_hooks.schema.tried import Profile


@dataclass(frozen=True)
class RunEvidence:
    """Records of one rank of a training run, as read from the rank's evidence file."""

    path: str
    run: recorded.RunRecord
    intervals: Tuple[recorded.IntervalRecord, ...]
    end: Optional[recorded.EndRecord] = None
    sources_off: Tuple[recorded.SourceOffRecord, ...] = ()
    stuck: Tuple[recorded.StuckRecord, ...] = ()
    """Records of the watchdog's alarms on standstills, and of the standstills' ends."""
    notes_of_waits: Tuple[recorded.StuckRecord, ...] = ()
    """Records of silent (alarm-free) waits for other ranks, and of these waits' ends.
    """
    save_records: Tuple[recorded.SaveRecord, ...] = ()
    after_saves: Tuple[recorded.AfterSaveRecord, ...] = ()
    validations: Tuple[recorded.ValidationRecord, ...] = ()
    validation_progress: Tuple[recorded.ValidationProgressRecord, ...] = ()
    """Records of the progress of validations, in the order of time."""
    memory: Tuple[recorded.MemoryRecord, ...] = ()
    """Records of the use of host memory, in the order of time."""
    tuned: Tuple[recorded.TunedRecord, ...] = ()
    """Records of automatic loader tuning (``tune=True``), in the order of time."""
    start_parts: Tuple[recorded.StartPartRecord, ...] = ()
    """Records that potentially slow phases of the training's start have begun.

    Of a run that left no more."""
    start: Optional[recorded.StartRecord] = None
    """Record of the training's start in parts, from process start to first iteration.

    ``None`` of a run that did not end its first iteration, and of older evidence."""
    notes: Tuple[Text, ...] = ()
    """Sentences for the user on unusual content of the evidence file."""
    profile: Optional[Profile] = None
    """Profile that ``mmgpu profile`` left in the work_dir of the run.

    It may be of another training."""
    cores_had: Optional[float] = None
    """Number of usable cores the real run had, if ``run`` describes a hypothetical one.

    ``None`` where ``run`` says what it had."""

    @property
    def switches(self) -> Tuple[recorded.TunedRecord, ...]:
        """Records of tuning actions that gave the train loader other settings."""
        return self.switches_of('train')

    def switches_of(
        self, loader: recorded.TunedLoader
    ) -> Tuple[recorded.TunedRecord, ...]:
        """Returns the records of tuning that gave one loader other settings.

        Args:
            loader: ``train`` or ``validation``.
        """
        return tuple(
            record for record in self.tuned_of(loader) if record.action != 'keep'
        )

    def tuned_of(
        self, loader: recorded.TunedLoader
    ) -> Tuple[recorded.TunedRecord, ...]:
        """Returns the records of tuning actions on one loader, in their order.

        Args:
            loader: ``train`` or ``validation``.
        """
        return tuple(record for record in self.tuned if record.loader == loader)

    @property
    def was_killed_for_memory(self) -> bool:
        """True if the kernel killed a process of the run for lack of memory.

        Of a run that left no end: if memory was nearly full when it was last read.
        """
        if self.end is None:
            return bool(self.memory) and self.memory[-1].is_low
        before, after = self.run.oom_kills, self.end.oom_kills
        return before is not None and after is not None and after > before


@dataclass(frozen=True)
class RankRow:
    """Seconds per iteration of a rank by part, over iterations all ranks recorded."""

    rank: int
    data_wait_s: float
    startup_s: float
    hooks_s: float
    """Seconds per iteration in hooks, hooks that wait for other ranks left out."""
    save_s: float
    own_s: float
    """Seconds per iteration that the rank spends in data wait, startup, hooks, saves.

    The others wait for the rank where it is largest."""
    step_s: float
    """Seconds per iteration of the train step, waits for the slowest rank included."""
    gpu_util_pct: Optional[float] = None


@dataclass(frozen=True)
class RanksSummary:
    """Comparison of the ranks of one run: times of each, and the slowest one."""

    world_size: int
    why: Text
    """Sentence that says which rank is slowest and why, or why that cannot be said."""
    rows: Tuple[RankRow, ...] = ()
    """Seconds per iteration of each rank, in order of rank."""
    iterations: int = 0
    """Number of iterations compared, the warm-up left out."""
    slowest: Optional[int] = None
    """Slowest rank; ``None`` when ranks differ by less than noise, or it is unknown."""
    part: Optional[str] = None
    """Part of training, such as ``data_wait``, in which the slowest rank loses time.

    ``data_wait``, ``startup``, ``hooks`` or ``checkpoint_save``."""
    lost_s: Optional[float] = None
    """Seconds per iteration by which the slowest rank makes the others wait.

    Its own time beyond the median of the others'."""
    noise_s: Optional[float] = None
    """Largest lead of the slowest rank that may be noise, in seconds per iteration."""
    notes: Tuple[Text, ...] = ()
    """Sentences on evidence files left out or cut short, and on missing ranks."""


def read_evidence(path: Path) -> RunEvidence:
    """Reads the evidence file of one rank.

    It takes some 0.02 ms per line on a 2-core VM.

    Args:
        path: A ``gpu_efficiency.jsonl``.

    Returns:
        The run with every interval that could be read. A torn last line (the run
        was killed) and garbage lines are left out and counted in ``notes``.

    Raises:
        EvidenceError: If there is no run record, the file holds more than one
            run, or it was written in a newer schema.
    """
    file = _read_records(path)
    found = file.records
    run = found[recorded.RunRecord][0]
    unknown = {record.source: record.reason for record in found[recorded.UnknownRecord]}
    return RunEvidence(
        path=str(path),
        run=replace(run, unknown={**run.unknown, **unknown}),
        intervals=tuple(found[recorded.IntervalRecord]),
        end=next(reversed(found[recorded.EndRecord]), None),
        sources_off=tuple(found[recorded.SourceOffRecord]),
        stuck=tuple(stuck for stuck in found[recorded.StuckRecord] if stuck.is_alarm),
        notes_of_waits=tuple(
            stuck for stuck in found[recorded.StuckRecord] if not stuck.is_alarm
        ),
        save_records=tuple(found[recorded.SaveRecord]),
        after_saves=tuple(found[recorded.AfterSaveRecord]),
        validations=tuple(found[recorded.ValidationRecord]),
        validation_progress=tuple(found[recorded.ValidationProgressRecord]),
        memory=tuple(found[recorded.MemoryRecord]),
        tuned=tuple(found[recorded.TunedRecord]),
        start_parts=tuple(found[recorded.StartPartRecord]),
        start=next(iter(found[recorded.StartRecord]), None),
        notes=tuple(file.notes),
    )


_LAST_WORDS = recorded.IntervalRecord, recorded.StuckRecord, recorded.EndRecord
_TAIL_BYTES = 2**16


def read_last_word(path: Path) -> recorded.EvidenceLine | None:
    """Reads the newest interval, standstill or end record in a file's last 64 KiB.

    Returns:
        ``None`` where there is none yet.

    Raises:
        OSError: If it cannot be read.
    """
    for line in reversed(read_end(path, _TAIL_BYTES).splitlines(keepends=True)):
        with contextlib.suppress(LineError):
            record = decode_line(line)
            if isinstance(record, _LAST_WORDS):
                return record
    return None


class _Records(NamedTuple):
    """Records of one evidence file by kind, and notes on lines left out."""

    records: dict[Any, list[Any]]
    """Records of the evidence file by kind."""
    notes: list[Text]
    """Sentences on lines of the evidence file that were left out."""


def _read_records(path: Path) -> _Records:
    found: dict[Any, list[Any]] = defaultdict(list)
    starts, bad, notes = list[str](), list[Text](), list[Text]()
    for number, line in read_lines(path):
        if line.isspace():
            continue
        schema = decode_schema(line)
        if schema is not None:
            check_schema(path, schema)
        try:
            record = decode_line(line)
        except LineError as error:
            if line.endswith(b'\n'):
                bad.append(phrase('line {line}: {error}', line=number, error=error))
            else:
                notes.append(
                    phrase(
                        '{file}: 1 torn last line skipped (the run was killed while it '
                        'was written); everything before it is used.',
                        file=path.name,
                    )
                )
            continue
        found[type(record)].append(record)
        if isinstance(record, recorded.RunRecord):
            starts.append(str(number))
    _check_one_run(path, starts, bad)
    if bad:
        skipped = phrase(
            '{file}: 1 unreadable line skipped, first {first}; the rest is used.',
            file=path.name,
            first=bad[0],
        )
        if len(bad) > 1:
            skipped = phrase(
                '{file}: {unreadable_lines:d} unreadable lines skipped, first {first}; '
                'the rest is used.',
                file=path.name,
                unreadable_lines=len(bad),
                first=bad[0],
            )
        notes.append(skipped)
    return _Records(found, notes)


def _check_one_run(path: Path, starts: list[str], bad: list[Text]) -> None:
    if not starts:
        seen = phrase('none')
        if bad:
            seen = phrase('1 unreadable line')
        if len(bad) > 1:
            seen = phrase('{lines:d} unreadable lines', lines=len(bad))
        raise EvidenceError(
            path,
            phrase(
                'expected a run record of GPUEfficiencyHook, found {seen}; the '
                'file is damaged or not ours, so train again with the hook.',
                seen=seen,
            ),
        )
    if len(starts) > 1:
        raise EvidenceError(
            path,
            phrase(
                'expected the records of one run, found {starts_count!s} runs '
                '(they begin on lines {starts}); split the file there, one run each.',
                starts_count=len(starts),
                starts=tuple(starts),
            ),
        )


class OtherRanks(NamedTuple):
    """Records of several ranks of a run, and notes on unreadable evidence files."""

    ranks: List[RunEvidence]
    notes: List[Text]
    """Sentences on evidence files that could not be read, one for each file."""


def read_other_ranks(paths: Sequence[Path]) -> OtherRanks:
    """Reads the evidence files of several ranks; notes and omits unreadable ones."""
    ranks, notes = [], []
    for path in paths:
        try:
            ranks.append(read_evidence(path))
        except EvidenceError as error:
            notes.append(phrase('Left out: {error}', error=error.said))
    return OtherRanks(ranks, notes)
