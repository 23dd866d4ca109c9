"""RAM, swap and unwritten pages, as ``/proc/meminfo`` and ``/proc/vmstat`` tell."""

from __future__ import annotations

import os


def parse_memory_bytes(text: bytes) -> tuple[int, int]:
    """Parse available RAM and swap space out of ``/proc/meminfo``.

    Available is what new work can take without swapping, not free memory::

        MemAvailable:   22118804 kB
        SwapTotal:       8388604 kB

    Args:
        text: The whole file.

    Raises:
        ValueError: If a figure is missing (Linux before 3.14) or no number.
    """
    available, swap = _field(text, b'MemAvailable:'), _field(text, b'SwapTotal:')
    return available * 1024, swap * 1024


def parse_swapped_pages(text: bytes) -> tuple[int, int]:
    """Parse pages swapped in and out since boot, out of ``/proc/vmstat``::

        pswpin 0
        pswpout 0

    Args:
        text: The whole file.

    Raises:
        ValueError: If one of them is missing (a kernel without swap) or no number.
    """
    return _field(text, b'pswpin '), _field(text, b'pswpout ')


def parse_unwritten_bytes(text: bytes) -> tuple[int, int]:
    """Parse pages that wait to be written, and that are being, out of ``meminfo``::

        Dirty:               312 kB
        Writeback:             0 kB

    Args:
        text: The whole file.

    Raises:
        ValueError: If a figure is missing or no number.
    """
    return _field(text, b'Dirty:') * 1024, _field(text, b'Writeback:') * 1024


def page_size_bytes() -> int:
    """Bytes of one page of memory; 64 KiB on some ARM and POWER kernels."""
    return os.sysconf('SC_PAGE_SIZE') if hasattr(os, 'sysconf') else 4096


def _field(text: bytes, name: bytes) -> int:
    # a search costs a fifth of splitting all the lines
    start = text.find(name)
    while start > 0 and text[start - 1 : start] != b'\n':
        start = text.find(name, start + 1)
    if start < 0:
        raise ValueError(f'it has no line {name.decode().strip(": ")!r}')
    start += len(name)
    end = text.find(b'\n', start)
    words = text[start : end if end >= 0 else None].split(None, 1)
    if not words:
        raise ValueError(f'{name.decode().strip(": ")!r} has no figure')
    return int(words[0])
