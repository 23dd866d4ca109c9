"""The gain between two settings that were measured in turns. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from mmgpu_hooks.model.student_t import student_t
from mmgpu_hooks.schema import Estimate

CONFIDENCE = 0.95


def fold_gain(before_s: Sequence[float], after_s: Sequence[float]) -> Estimate | None:
    """How much faster the second setting is, from pairs measured one after the other.

    Each pair shares what the machine was like then, so the logarithms of their ratios
    are averaged, and their spread is that of the noise alone: a t interval on them.

    Args:
        before_s: Seconds of the first setting, per image or any other unit of work.
        after_s: Of the second; one without a partner is left out.

    Returns:
        ``before / after - 1`` with its interval, or ``None`` below two pairs.
    """
    logs = [math.log(old / new) for old, new in zip(before_s, after_s)]
    if len(logs) < 2:
        return None
    middle = statistics.fmean(logs)
    error = statistics.stdev(logs) / math.sqrt(len(logs))
    half = student_t((1 + CONFIDENCE) / 2, len(logs) - 1) * error
    return Estimate(
        value=math.expm1(middle),
        low=math.expm1(middle - half),
        high=math.expm1(middle + half),
        count=len(logs),
    )


def alternate(pairs: int) -> list[bool]:
    """Which setting's turn it is: A B B A A B B A, so that a drift cancels out.

    Returns:
        Two per pair; whether it is the second setting's.
    """
    return [bool((index + index // 2) % 2) for index in range(2 * pairs)]
