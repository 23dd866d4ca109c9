"""Formats measured values for users: with a unit, and never 0 for an unknown."""

from __future__ import annotations

from collections.abc import Iterable


def format_seconds(seconds: float | None) -> str:
    """Formats seconds: ``850 us``, ``12.3 ms``, ``0.412 s`` or ``12.4 min``."""
    if seconds is None:
        return 'unknown'
    if 0 < seconds < 0.001:
        return f'{1e6 * seconds:.0f} us'
    if abs(seconds) < 0.1:
        return f'{1000 * seconds:.1f} ms'
    if seconds < 10:
        return f'{seconds:.3f} s'
    return f'{seconds:.1f} s' if seconds < 600 else f'{seconds / 60:.1f} min'


def format_sum(seconds: float | None) -> str:
    """Formats a total of seconds over a run: ``12.3 s``, one decimal from 1 s on."""
    if seconds is None or not 1 <= seconds < 600:
        return format_seconds(seconds)
    return f'{seconds:.1f} s'


def format_hours(hours: float) -> str:
    """Formats hours: ``9.1 h``, ``12 min`` or ``40 s``."""
    if hours >= 1:
        return f'{hours:.1f} h'
    seconds = 3600 * hours
    return f'{seconds / 60:.0f} min' if seconds >= 90 else f'{seconds:.0f} s'


def format_long(seconds: float) -> str:
    """Formats the seconds of a training: ``9.1 h``, ``12.4 min`` or ``40.0 s``."""
    hours = seconds / 3600
    return f'{hours:.1f} h' if hours >= 1 else format_sum(seconds)


def format_bytes(size: float | None) -> str:
    """Formats bytes: ``52 KiB``, ``812 MiB``, ``3.1 GiB`` or ``unknown``."""
    if size is None:
        return 'unknown'
    if 0 < size < 2**10:
        return f'{size:.0f} bytes'
    if 0 < size < 2**20:
        return f'{size / 1024:.0f} KiB'
    mib = size / 2**20
    return f'{mib:.0f} MiB' if mib < 1024 else f'{mib / 1024:.1f} GiB'


def format_pct(share: float) -> str:
    """Formats per cent: ``51 %``, ``3.2 %`` or ``0.04 %``."""
    digits = 0 if share >= 10 or share == 0 else 1 if share >= 0.1 else 2
    return f'{share:.{digits}f} %'


def format_count(count: float) -> str:
    """Formats a count: ``41.9 M`` from 100,000 on, below with all digits."""
    return f'{count / 1e6:.1f} M' if count >= 1e5 else f'{count:.0f}'


def format_signed(seconds: float) -> str:
    """Formats a difference of seconds with its sign: ``+0.200 s`` or ``-3.0 ms``."""
    return ('-' if seconds < 0 else '+') + format_seconds(abs(seconds))


def format_change(before_s: float, after_s: float) -> str:
    """Formats a change of a duration: ``37.4 -> 10.2 ms``, a common unit only once."""
    before, after = format_seconds(before_s), format_seconds(after_s)
    number, _, unit = before.partition(' ')
    return f'{number if after.endswith(f" {unit}") else before} -> {after}'


def plural(count: int, noun: str) -> str:
    """Formats a number with its noun: ``1 save``, ``2 saves``."""
    return f'{count} {noun}{"" if count == 1 else "s"}'


def format_numbers(numbers: Iterable[int]) -> str:
    """Formats CPU numbers as the Linux kernel lists them, such as ``0-2,8``.

    Examples:
        >>> format_numbers([8, 0, 1, 2])
        '0-2,8'
    """
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][-1] + 1:
            spans[-1].append(number)
        else:
            spans.append([number])
    return ','.join(
        f'{span[0]}-{span[-1]}' if len(span) > 1 else f'{span[0]}' for span in spans
    )
