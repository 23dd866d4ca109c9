"""Reads evidence back: what can be used is used, what cannot is counted and said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mmgpu_hooks.evidence.findings import Findings, Gathering
from mmgpu_hooks.evidence.lines import read_lines
from mmgpu_hooks.evidence.run_folder import EvidenceError
from mmgpu_hooks.records import (
    EndRecord,
    ModelBytesRecord,
    RunEvidence,
    RunRecord,
    SaveAftermathRecord,
    SaveRecord,
    SourceOffRecord,
    UnknownRecord,
    ValidationRecord,
)

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
    gathering = Gathering(path)
    gathering.take_all(read_lines(path, newest_bytes))
    return _make_evidence(path, gathering.found)


def _make_evidence(path: Path, found: Findings) -> RunEvidence:
    """The evidence of one run, if it is that."""
    run: RunRecord | None = None
    end: EndRecord | None = None
    model: ModelBytesRecord | None = None
    sources_off: list[SourceOffRecord] = []
    saves: list[SaveRecord] = []
    aftermaths: list[SaveAftermathRecord] = []
    validations: list[ValidationRecord] = []
    unknown: dict[str, str] = {}
    begins: list[int] = []
    for number, record in found.records:
        if isinstance(record, RunRecord):
            run = run or record
            begins.append(number)
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
        elif isinstance(record, ValidationRecord):
            validations.append(record)
    if run is None:
        seen = f'{len(found.bad)} unreadable lines' if found.bad else 'none'
        raise EvidenceError(
            f'{path}: expected a run record of GPUEfficiencyHook, found {seen}; '
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
        intervals=tuple(found.intervals),
        end=end,
        sources_off=tuple(sources_off),
        model=model,
        save_records=tuple(saves),
        save_aftermaths=tuple(aftermaths),
        validations=tuple(validations),
        notes=tuple(_notes(path, found)),
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


def _notes(path: Path, found: Findings) -> list[str]:
    notes = []
    if found.is_torn:
        notes.append(
            f'{path.name}: 1 torn last line skipped (the run was killed while it '
            'was written); everything before it is used.'
        )
    if found.bad:
        number, why = found.bad[0]
        notes.append(
            f'{path.name}: {len(found.bad)} unreadable line(s) skipped, first line '
            f'{number}: {why}; the rest is used.'
        )
    return notes
