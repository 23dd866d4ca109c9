"""Reads evidence back: what can be used is used, what cannot is counted and said."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from mmgpu_hooks.evidence.parser import (
    LineError,
    is_measurement,
    parse_line,
    parse_schema,
)
from mmgpu_hooks.evidence.run_folder import EvidenceError
from mmgpu_hooks.records import (
    SCHEMA_VERSION,
    EndRecord,
    IntervalRecord,
    ModelBytesRecord,
    PlainRun,
    RunEvidence,
    RunRecord,
    SaveAftermathRecord,
    SaveRecord,
    SourceOffRecord,
    UnknownRecord,
)

_LEAST_BYTES = 2**16


def read_evidence(path: Path, newest_bytes: int | None = None) -> RunEvidence:
    """Read one rank's evidence file; 0.05 to 0.2 ms per line on a 2-core VM.

    Args:
        path: A ``gpu_efficiency.jsonl``.
        newest_bytes: Read the first line and so much of the file's end, for whoever
            must not take long. Defaults to all of it.

    Returns:
        The run with every interval that could be read. A torn last line (the run
        was killed) and garbage lines are left out and counted in ``notes``.

    Raises:
        EvidenceError: If there is no run record, the file holds more than one
            run, or it was written in a newer schema.
    """
    run: RunRecord | None = None
    end: EndRecord | None = None
    intervals: list[IntervalRecord] = []
    sources_off: list[SourceOffRecord] = []
    saves: list[SaveRecord] = []
    aftermaths: list[SaveAftermathRecord] = []
    unknown: dict[str, str] = {}
    bad: list[str] = []
    torn = False
    model: ModelBytesRecord | None = None
    begins: list[int] = []
    for number, text, whole in _read_lines(path, newest_bytes):
        schema = parse_schema(text) if '"schema"' in text else None
        if schema is not None and schema > SCHEMA_VERSION:
            raise EvidenceError(
                f'{path}: expected evidence of schema {SCHEMA_VERSION} or older, '
                f'found schema {schema}; install a newer mmgpu_hooks to read it.'
            )
        try:
            record = parse_line(text)
        except LineError as error:
            if whole:
                bad.append(f'line {number}: {error}')
            else:
                torn = True
            continue
        if isinstance(record, RunRecord):
            run = run or record
            begins.append(number)
        elif isinstance(record, IntervalRecord):
            intervals.append(record)
        elif isinstance(record, SourceOffRecord):
            sources_off.append(record)
        elif isinstance(record, UnknownRecord):
            unknown[record.source] = record.reason
        elif isinstance(record, EndRecord):
            end = record
        elif isinstance(record, ModelBytesRecord):
            model = record
        elif isinstance(record, SaveRecord):
            saves.append(record)
        elif isinstance(record, SaveAftermathRecord):
            aftermaths.append(record)
    if run is None:
        found = f'{len(bad)} unreadable lines' if bad else 'none'
        raise EvidenceError(
            f'{path}: expected a run record of GPUEfficiencyHook, found {found}; '
            'the file is damaged or not ours, so train again with the hook.'
        )
    if len(begins) > 1:
        lines = ', '.join(str(number) for number in begins)
        raise EvidenceError(
            f'{path}: expected the records of one run, found {len(begins)} runs '
            f'(they begin on lines {lines}); split the file there, one run each.'
        )
    return RunEvidence(
        path=str(path),
        run=replace(run, unknown={**run.unknown, **unknown}),
        intervals=tuple(intervals),
        end=end,
        sources_off=tuple(sources_off),
        model=model,
        save_records=tuple(saves),
        save_aftermaths=tuple(aftermaths),
        notes=tuple(_notes(path, bad, torn)),
    )


def read_other_ranks(
    paths: Sequence[Path], newest_bytes: int | None = None
) -> tuple[list[RunEvidence], list[str]]:
    """Read the evidence of other ranks; a bad file costs its rank and no more.

    Args:
        paths: Their files.
        newest_bytes: As for `read_evidence`, for all of them together; some 64 KiB
            of each are read in any case.

    Returns:
        What could be read, and a sentence for each file that could not.
    """
    share = None
    if newest_bytes is not None:
        share = max(newest_bytes // max(len(paths), 1), _LEAST_BYTES)
    ranks, notes = [], []
    for path in paths:
        try:
            ranks.append(read_evidence(path, share))
        except EvidenceError as error:
            notes.append(f'Left out: {error}')
    return ranks, notes


def reread_in_full(evidence: RunEvidence) -> RunEvidence:
    """Read the file of which `read_other_ranks` may have read the newest part only.

    Sums and epoch starts of a part are not the run's, and its first interval is no
    warm-up.

    Raises:
        EvidenceError: As `read_evidence`, which takes as long.
    """
    return read_evidence(Path(evidence.path))


def _read_lines(
    path: Path, newest_bytes: int | None = None
) -> Iterator[tuple[int, str, bool]]:
    """Number, text and whether the line is ended, for each line that is not blank."""
    try:
        with path.open('rb') as file:
            for number, raw in enumerate(_each_line(file, newest_bytes), start=1):
                if raw.strip():
                    codec = 'utf-8-sig' if number == 1 else 'utf-8'
                    yield number, raw.decode(codec, 'replace'), raw.endswith(b'\n')
    except OSError as error:
        raise EvidenceError(
            f'{path}: expected a readable evidence file, found {error.strerror}; '
            'check the path and its permissions.'
        ) from error


def _each_line(file: IO[bytes], newest_bytes: int | None) -> Iterator[bytes]:
    """All lines, or the first and those that lie whole in the newest bytes."""
    if newest_bytes is not None:
        yield file.readline()
        begin = os.fstat(file.fileno()).st_size - newest_bytes
        if begin > file.tell():
            file.seek(begin - 1)
            file.readline()  # what is left of the line before
    yield from file


def _notes(path: Path, bad: list[str], torn: bool) -> list[str]:
    notes = []
    if torn:
        notes.append(
            f'{path.name}: 1 torn last line skipped (the run was killed while it '
            'was written); everything before it is used.'
        )
    if bad:
        notes.append(
            f'{path.name}: {len(bad)} unreadable line(s) skipped, first {bad[0]}; '
            'the rest is used.'
        )
    return notes


def read_plain_run(path: Path, config_copy: Path | None) -> PlainRun:
    """Read what MMEngine's own log tells of a run without our hook.

    Args:
        path: A ``scalars.json``: one JSON object per logged line.
        config_copy: The run's flattened config, when it is there.

    Returns:
        Medians of ``time`` and ``data_time`` over the logged lines.

    Raises:
        EvidenceError: If no line carries both.
    """
    time_s: list[float] = []
    data_time_s: list[float] = []
    last = bad = 0
    for _, text, _ in _read_lines(path):
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            bad += 1
            continue
        # validation lines carry both times too, but no learning rate
        if not isinstance(line, dict) or 'lr' not in line:
            continue
        whole, wait = _seconds(line.get('time')), _seconds(line.get('data_time'))
        if whole is not None and wait is not None and wait <= whole:
            time_s.append(whole)
            data_time_s.append(wait)
            step = line.get('iter', line.get('step', 0))
            last = max(last, step if isinstance(step, int) else 0)
    if not time_s:
        raise EvidenceError(
            f'{path}: expected training lines with "time" and "data_time", found '
            'none; train at least one logging interval with GPUEfficiencyHook.'
        )
    notes = (f'{path.name}: {bad} unreadable line(s) skipped.',) if bad else ()
    return PlainRun(
        path=str(path),
        iterations=last,
        lines=len(time_s),
        time_s=statistics.median(time_s),
        data_time_s=statistics.median(data_time_s),
        config_copy=str(config_copy) if config_copy else None,
        notes=notes,
    )


def _seconds(value: Any) -> float | None:
    return float(value) if is_measurement(value) else None
