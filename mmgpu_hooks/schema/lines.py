"""Encodes evidence records as JSON lines and decodes them, with msgspec.

msgspec encodes an interval while training waits, and decodes and checks it in C; what
it refuses is counted and left out. What is unknown or empty is left out of a line, so
lines stay short. A longer line than some MiB is not ours: nothing in the folder of a
run is read without a bound.

What is unknown carries its reason: in the run record, in an ``unknown`` record where it
shows only while the run is on, or in a ``source_off`` record where a source failed.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple, Union

import msgspec

from mmgpu_hooks.schema.recorded import SCHEMA_VERSION, EvidenceLine
from mmgpu_hooks.schema.regular import NotRegularError, open_regular
from mmgpu_hooks.schema.run_folder import EvidenceError
from mmgpu_hooks.schema.text import phrase

KINDS: dict[str, type[EvidenceLine]] = {
    str(kind.__struct_config__.tag): kind for kind in EvidenceLine.__subclasses__()
}
"""Record classes of the evidence file by the ``kind`` in their JSON lines."""

MOST_LINE_BYTES = 2 * 2**20
"""Maximum number of bytes that are read from one line of an evidence file.

An interval with 64 workers has some 20 KiB.
"""


def _to_plain(value: Any) -> Any:
    """Converts a NumPy scalar to a Python value; raises an error for other types."""
    if isinstance(value, (str, float)):
        return float(value) if isinstance(value, float) else str(value)
    if hasattr(value, 'item'):
        return value.item()
    raise TypeError(f'a record holds a {type(value).__name__}, unknown to JSON')


_encoder = msgspec.json.Encoder(enc_hook=_to_plain)
_decoder = msgspec.json.Decoder(Union[tuple(KINDS.values())])


class _Head(msgspec.Struct):
    """First fields of an evidence line: kind and schema version; others are ignored."""

    kind: str
    schema: Union[int, None] = None


_head_decoder = msgspec.json.Decoder(_Head)
_REFUSALS = (msgspec.MsgspecError, ValueError, RecursionError)


class LineError(ValueError):
    """Error for a line that is not a valid evidence record."""


def encode_line(record: EvidenceLine) -> bytes:
    """Encodes an evidence record as one JSON line, newline included.

    Figures that are not finite are written as ``null``: JSON knows no infinity,
    and an infinite duration is as good as unknown.

    Raises:
        TypeError: If the record holds what JSON does not know.
    """
    try:
        return _encoder.encode(record) + b'\n'
    except UnicodeEncodeError:
        # Python keeps the bytes of a path that is not UTF-8 as lone surrogates
        plain = msgspec.to_builtins(record, enc_hook=_to_plain)
        text = json.dumps(plain, ensure_ascii=False).encode('utf-8', 'replace')
        return _encoder.encode(json.loads(text)) + b'\n'


def decode_line(line: bytes) -> EvidenceLine | None:
    """Decodes one line of an evidence file; unknown fields are ignored.

    Returns:
        The record, or ``None`` for a kind that this version does not know.

    Raises:
        LineError: If it is no JSON, or a field is missing or has a value that no
            measurement gives.
    """
    try:
        record: EvidenceLine = _decoder.decode(line)
    except _REFUSALS as error:
        head = _decode_head(line)
        if head is None or head.kind in KINDS:
            raise LineError(str(error)) from error
        return None
    return record


def decode_schema(line: bytes) -> int | None:
    """Decodes the schema version of a run record; all its other fields are ignored."""
    head = _decode_head(line) if b'"schema"' in line else None
    return head.schema if head is not None and head.kind == 'run' else None


def check_schema(path: Path | str, schema: int) -> None:
    """Raises an error for an evidence file whose schema version cannot be read here.

    Args:
        path: Evidence file, to name in the message.
        schema: Schema version that its run record states.

    Raises:
        EvidenceError: If it is older or newer.
    """
    if schema > SCHEMA_VERSION:
        raise EvidenceError(
            path,
            phrase(
                'expected evidence of schema {known_schema}, found schema {schema}; '
                'install a newer mmgpu_hooks to read it.',
                known_schema=SCHEMA_VERSION,
                schema=schema,
            ),
        )
    if schema < SCHEMA_VERSION:
        raise EvidenceError(
            path,
            phrase(
                'expected evidence of schema {known_schema}, found schema {schema} of '
                'an older mmgpu_hooks; read it with that version, or train again.',
                known_schema=SCHEMA_VERSION,
                schema=schema,
            ),
        )


def _decode_head(line: bytes) -> _Head | None:
    try:
        head: _Head = _head_decoder.decode(line)
    except _REFUSALS:
        return None
    return head


class NumberedLine(NamedTuple):
    """Bytes of one line of a file, with the line's number from 1."""

    number: int
    """Number of the line in the file, from 1."""
    data: bytes
    """Bytes of the line, newline included, which the last line of a file may lack."""


def read_lines(path: Path) -> Iterator[NumberedLine]:
    """Reads the lines of a regular file, each with its number.

    Raises:
        EvidenceError: If it is not a regular file, or cannot be read.
    """
    try:
        with open_regular(path) as file:
            for number, line in enumerate(_each_line(file), 1):
                data = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
                yield NumberedLine(number, data)
    except NotRegularError as error:
        raise EvidenceError(
            path,
            phrase(
                'expected a regular file, found {strerror}; move it out of the '
                'folder of the run.',
                strerror=error.strerror,
            ),
        ) from None
    except OSError as error:
        raise EvidenceError(
            path,
            phrase(
                'expected a readable file, found {strerror}; check the path '
                'and its permissions.',
                strerror=error.strerror,
            ),
        ) from error


def _each_line(file: IO[bytes]) -> Iterator[bytes]:
    """Yields the lines of a file, each cut after `MOST_LINE_BYTES` bytes."""
    while line := file.readline(MOST_LINE_BYTES):
        part = line
        while part and not part.endswith(b'\n'):
            part = file.readline(MOST_LINE_BYTES)
        yield line if part is line or not part else line + b'\n'
