"""Pressure stall information: how long tasks waited for what the host lacks."""

from __future__ import annotations


def parse_pressure(text: bytes) -> float:
    """Parse one file of ``/proc/pressure`` (Linux 4.20 and later).

    ``some`` counts the time in which at least one task waited, in microseconds
    since boot; ``full`` the time in which all did::

        some avg10=0.07 avg60=0.31 avg300=15.13 total=329505311
        full avg10=0.00 avg60=0.00 avg300=0.00 total=0

    The running averages lag by ten seconds and more: the difference of two totals
    is the truth of a window.

    Args:
        text: The whole file.

    Returns:
        The total of ``some``, in seconds.

    Raises:
        ValueError: If the text is not of this form.
    """
    # the kernel writes it first
    if text.startswith(b'some '):
        return int(text.partition(b'\n')[0].rpartition(b'total=')[2]) / 1e6
    raise ValueError(f'expected a line "some ... total=<us>", found {text[:80]!r}')


def fold_pressure_pct(
    before_s: float, after_s: float, duration_s: float
) -> float | None:
    """Share of a window in which some task waited.

    Args:
        before_s: Total when the window began.
        after_s: Total when it ended.
        duration_s: How long it was.

    Returns:
        Per cent, 0 to 100; ``None`` when no time passed, or when the total fell
        (the process was moved to another host).
    """
    waited_s = after_s - before_s
    if duration_s <= 0.0 or waited_s < 0.0:
        return None
    # the kernel weighs its CPUs by how busy they are: a little over 100 is possible
    return min(100.0, 100.0 * waited_s / duration_s)
