"""Reads evidence back: what can be used is used, what cannot is counted and said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from mmgpu_hooks.schema.lines import (
    AnyLine,
    LineError,
    decode_line,
    decode_schema,
    read_lines,
)
from mmgpu_hooks.schema.recorded import (
    SCHEMA_VERSION,
    EndRecord,
    IntervalRecord,
    Line,
    ModelBytesRecord,
    RunRecord,
    SaveAftermathRecord,
    SaveRecord,
    SourceOffRecord,
    StuckRecord,
    UnknownRecord,
    ValidationRecord,
)
from mmgpu_hooks.schema.run import RunEvidence
from mmgpu_hooks.schema.run_folder import EvidenceError

_LEAST_BYTES = 2**16


def read_evidence(path: Path, newest_bytes: int | None = None) -> RunEvidence:
    """Read one rank's evidence file; some 0.02 ms per line on a 2-core VM.

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
    found: dict[type[Line], list[AnyLine]] = {}
    starts: list[int] = []
    bad: list[str] = []
    is_torn = False
    for number, line in read_lines(path, newest_bytes):
        if line.isspace():
            continue
        schema = decode_schema(line)
        if schema is not None and schema > SCHEMA_VERSION:
            raise EvidenceError(
                f'{path}: expected evidence of schema {SCHEMA_VERSION} or older, '
                f'found schema {schema}; install a newer mmgpu_hooks to read it.'
            )
        try:
            record = decode_line(line)
        except LineError as error:
            is_torn = not line.endswith(b'\n')
            if not is_torn:
                bad.append(f'line {number}: {error}')
            continue
        if isinstance(record, RunRecord):
            starts.append(number)
        if record is not None:
            found.setdefault(type(record), []).append(record)
    if not starts:
        seen = f'{len(bad)} unreadable lines' if bad else 'none'
        raise EvidenceError(
            f'{path}: expected a run record of GPUEfficiencyHook, found {seen}; '
            'the file is damaged or not ours, so train again with the hook.'
        )
    if len(starts) > 1:
        lines = ', '.join(str(number) for number in starts)
        raise EvidenceError(
            f'{path}: expected the records of one run, found {len(starts)} runs '
            f'(they begin on lines {lines}); split the file there, one run each.'
        )
    return _make_evidence(path, found, _notes(path, bad, is_torn))


_Kind = TypeVar('_Kind', bound=Line)


def _make_evidence(
    path: Path, found: Mapping[type[Line], Sequence[Any]], notes: tuple[str, ...]
) -> RunEvidence:
    def all_of(kind: type[_Kind]) -> tuple[_Kind, ...]:
        return tuple(found.get(kind, ()))

    (run,) = all_of(RunRecord)
    unknown = {one.source: one.reason for one in all_of(UnknownRecord)}
    return RunEvidence(
        path=str(path),
        run=replace(run, unknown={**run.unknown, **unknown}),
        intervals=all_of(IntervalRecord),
        end=next(reversed(all_of(EndRecord)), None),
        sources_off=all_of(SourceOffRecord),
        stuck=all_of(StuckRecord),
        model=next(reversed(all_of(ModelBytesRecord)), None),
        save_records=all_of(SaveRecord),
        save_aftermaths=all_of(SaveAftermathRecord),
        validations=all_of(ValidationRecord),
        notes=notes,
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


def _notes(path: Path, bad: Sequence[str], is_torn: bool) -> tuple[str, ...]:
    notes = []
    if is_torn:
        notes.append(
            f'{path.name}: 1 torn last line skipped (the run was killed while it '
            'was written); everything before it is used.'
        )
    if bad:
        notes.append(
            f'{path.name}: {len(bad)} unreadable line(s) skipped, first {bad[0]}; '
            'the rest is used.'
        )
    return tuple(notes)
