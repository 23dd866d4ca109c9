"""nvidia-smi, asked once or read alongside: what our figures are held against."""

from __future__ import annotations

import datetime
import statistics
import subprocess
import threading

_FORMAT = ('--format=csv,noheader,nounits',)


def ask_smi(*fields: str, gpu: str | None = None) -> list[list[str]]:
    """One answer of nvidia-smi: a line per card, a cell per field."""
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
    """Cells of a line of nvidia-smi's CSV."""
    return [cell.strip() for cell in line.split(',')]


def parse_smi_look(line: str) -> tuple[float, float] | None:
    """Wall-clock seconds and per cent; ``None`` where it tells none.

    Examples:
        >>> parse_smi_look('2026/01/02 03:04:05.678, [N/A]') is None
        True
    """
    cells = parse_smi_line(line)
    try:
        at = datetime.datetime.strptime(cells[0], '%Y/%m/%d %H:%M:%S.%f')
        return at.timestamp(), float(cells[1])
    except (ValueError, IndexError):
        return None


class Smi:
    """nvidia-smi's utilisation, read alongside in a process of its own.

    It stamps its looks itself, since it may write them late.

    Args:
        gpu: UUID of the card.
    """

    def __init__(self, gpu: str) -> None:
        self._looks: list[tuple[float, float]] = []
        fields = ('--query-gpu=timestamp,utilization.gpu', *_FORMAT)
        self._process = subprocess.Popen(
            ['nvidia-smi', *fields, '-i', gpu, '-lms', '200'],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            look = parse_smi_look(line)
            if look is not None:
                self._looks.append(look)

    def mean(self, since_s: float, until_s: float) -> float | None:
        """Mean of the looks between two times of the wall clock."""
        values = [value for at_s, value in self._looks if since_s <= at_s <= until_s]
        return statistics.fmean(values) if values else None

    def close(self) -> None:
        """End it; what it saw stays."""
        self._process.terminate()
        self._process.wait(10)
        self._reader.join(10)
        assert self._process.stdout is not None
        self._process.stdout.close()
