"""Reads GPU utilisation from nvidia-smi, once or continuously, as a reference."""

from __future__ import annotations

import datetime
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

_FORMAT = ('--format=csv,noheader,nounits',)


def ask_smi(*fields: str, gpu: str | None = None) -> list[list[str]]:
    """Runs nvidia-smi once; returns one row per GPU with one cell per queried field."""
    command = ['nvidia-smi', f'--query-gpu={",".join(fields)}', *_FORMAT]
    done = subprocess.run(
        [*command, *(['-i', gpu] if gpu else [])],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return [parse_smi_line(line) for line in done.stdout.splitlines() if line.strip()]


def parse_smi_line(line: str) -> list[str]:
    """Splits a CSV line of nvidia-smi into cells."""
    return [cell.strip() for cell in line.split(',')]


class SmiSample(NamedTuple):
    """GPU utilisation in per cent by nvidia-smi, with its timestamp."""

    at_s: float
    """Timestamp of the sample in seconds since 1970, by the wall clock."""
    util_pct: float


def parse_smi_sample(line: str) -> SmiSample | None:
    """Parses a CSV line of nvidia-smi; returns ``None`` if it has no number.

    Examples:
        >>> parse_smi_sample('2026/01/02 03:04:05.678, [N/A]') is None
        True
    """
    cells = parse_smi_line(line)
    try:
        at = datetime.datetime.strptime(cells[0], '%Y/%m/%d %H:%M:%S.%f')
        return SmiSample(at.timestamp(), float(cells[1]))
    except (ValueError, IndexError):
        return None


@contextmanager
def sampling_smi(gpu: str) -> Iterator[list[SmiSample]]:
    """Context in which nvidia-smi runs and its time-stamped samples are collected.

    Args:
        gpu: UUID of the card.
    """
    samples: list[SmiSample] = []
    fields = ('--query-gpu=timestamp,utilization.gpu', *_FORMAT)
    with tempfile.TemporaryFile('w+') as output:
        command = ['nvidia-smi', *fields, '-i', gpu, '-lms', '200']
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.DEVNULL)
        try:
            yield samples
        finally:
            process.terminate()
            process.wait(10)
        output.seek(0)
        samples += filter(None, map(parse_smi_sample, output))
