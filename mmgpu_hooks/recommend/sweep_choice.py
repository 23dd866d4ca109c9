"""The fastest settings of a sweep that the host carries. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mmgpu_hooks.recommend.choice import SAME_SPEED
from mmgpu_hooks.schema import SweepRow, SweepSetting


def choose_best(rows: Sequence[SweepRow]) -> tuple[SweepSetting, ...]:
    """The best setting of each batch size and precision, the fastest of all first.

    A batch size and a precision belong to the recipe, so nobody is told to change them
    for speed: within each, whatever is as good as equal to the fastest and needs the
    fewest workers is best.

    Args:
        rows: All trials.

    Returns:
        Nothing for a batch size none of whose trials may be recommended.
    """
    groups: dict[tuple[int | None, bool | None], list[SweepRow]] = {}
    for row in rows:
        if is_eligible(row):
            key = row.setting.batch_size, row.setting.amp
            groups.setdefault(key, []).append(row)
    best = [_pick(group) for group in groups.values()]
    best.sort(key=_speed, reverse=True)
    return tuple(row.setting for row in best)


def is_eligible(row: SweepRow) -> bool:
    """Whether a trial may be recommended at all: it came to its end, and trains."""
    if row.status != 'completed' or not row.is_measured:
        return False
    if row.is_loss_finite is False:
        return False
    return not exceeds_host(row)


def exceeds_host(row: SweepRow) -> bool:
    """Whether it had more workers than the host carries."""
    return row.most_workers is not None and row.setting.num_workers > row.most_workers


def _pick(rows: Iterable[SweepRow]) -> SweepRow:
    rows = list(rows)
    fastest = max(map(_speed, rows))
    equal = [row for row in rows if _speed(row) >= (1 - SAME_SPEED) * fastest]
    return min(equal, key=lambda row: (row.setting.num_workers, -_speed(row)))


def _speed(row: SweepRow) -> float:
    """Images per second; iterations where the images are unknown."""
    if row.images_per_s is not None:
        return row.images_per_s
    return 1 / row.iter_s.value if row.iter_s is not None else 0.0
