"""Reads evidence back: what can be used is used, what cannot is counted and said."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from mmgpu_hooks.schema.lines import (
    LineError,
    decode_line,
    decode_schema,
    read_lines,
)
from mmgpu_hooks.schema.plural import plural
from mmgpu_hooks.schema.recorded import (
    SCHEMA_VERSION,
    EndRecord,
    IntervalRecord,
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


def read_evidence(path: Path) -> RunEvidence:
    """Read one rank's evidence file; some 0.02 ms per line on a 2-core VM.

    Args:
        path: A ``gpu_efficiency.jsonl``.

    Returns:
        The run with every interval that could be read. A torn last line (the run
        was killed) and garbage lines are left out and counted in ``notes``.

    Raises:
        EvidenceError: If there is no run record, the file holds more than one
            run, or it was written in a newer schema.
    """
    found, notes = _read_records(path)
    run = found[RunRecord][0]
    unknown = {one.source: one.reason for one in found[UnknownRecord]}
    return RunEvidence(
        path=str(path),
        run=replace(run, unknown={**run.unknown, **unknown}),
        intervals=tuple(found[IntervalRecord]),
        end=next(reversed(found[EndRecord]), None),
        sources_off=tuple(found[SourceOffRecord]),
        stuck=tuple(found[StuckRecord]),
        save_records=tuple(found[SaveRecord]),
        save_aftermaths=tuple(found[SaveAftermathRecord]),
        validations=tuple(found[ValidationRecord]),
        notes=tuple(notes),
    )


def _read_records(path: Path) -> tuple[dict[Any, list[Any]], list[str]]:
    """The records of one run by kind, and notes on lines that were left out."""
    found: dict[Any, list[Any]] = defaultdict(list)
    starts, bad, notes = list[str](), list[str](), list[str]()
    for number, line in read_lines(path):
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
            if line.endswith(b'\n'):
                bad.append(f'line {number}: {error}')
            else:
                notes.append(
                    f'{path.name}: 1 torn last line skipped (the run was killed while '
                    'it was written); everything before it is used.'
                )
            continue
        found[type(record)].append(record)
        if isinstance(record, RunRecord):
            starts.append(str(number))
    _check_one_run(path, starts, bad)
    if bad:
        notes.append(
            f'{path.name}: {plural(len(bad), "unreadable line")} skipped, first '
            f'{bad[0]}; the rest is used.'
        )
    return found, notes


def _check_one_run(path: Path, starts: list[str], bad: list[str]) -> None:
    if not starts:
        seen = f'{len(bad)} unreadable lines' if bad else 'none'
        raise EvidenceError(
            f'{path}: expected a run record of GPUEfficiencyHook, found {seen}; '
            'the file is damaged or not ours, so train again with the hook.'
        )
    if len(starts) > 1:
        raise EvidenceError(
            f'{path}: expected the records of one run, found {len(starts)} runs '
            f'(they begin on lines {", ".join(starts)}); split the file there, one run '
            'each.'
        )


def read_other_ranks(paths: Sequence[Path]) -> tuple[list[RunEvidence], list[str]]:
    """Read the evidence of other ranks; a bad file costs its rank and no more.

    Returns:
        What could be read, and a sentence for each file that could not.
    """
    ranks, notes = [], []
    for path in paths:
        try:
            ranks.append(read_evidence(path))
        except EvidenceError as error:
            notes.append(f'Left out: {error}')
    return ranks, notes
