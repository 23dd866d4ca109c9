"""Folds what the GPUs did over a run."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from operator import mul

from mmgpu_hooks.evidence.column import Column
from mmgpu_hooks.evidence.interval_table import IntervalTable
from mmgpu_hooks.evidence.weights import (
    calm_mask,
    max_known,
    pooled_std,
    same_or_mixed,
    sum_known,
    total,
    weighted_mean,
)
from mmgpu_hooks.schema import (
    CardImbalance,
    CardWindow,
    GpuWindow,
    RunRecord,
)

MEANS = (
    'sm_clock_mhz',
    'mem_clock_mhz',
    'power_w',
    'throttled_pct',
    'own_util_pct',
    'others_util_pct',
    'sm_active_pct',
    'sm_occupancy_pct',
    'tensor_active_pct',
    'dram_active_pct',
    'pcie_rx_bytes_per_s',
    'pcie_tx_bytes_per_s',
)
"""Figures of a window whose mean, weighted by its seconds, is the run's."""

MIN_CALM = 3
"""Intervals without a validation or a save, from which means are over them alone."""


def fold_gpu(steady: IntervalTable) -> GpuWindow | None:
    """Fold the windows of the card that this rank trains on.

    Means are of plain training, where it has `MIN_CALM` intervals; what was largest is
    of all of them.
    """
    every = steady.where(steady.ints('gpu', 'samples').filled())
    if not len(every):
        return None
    windows = plain_training(every)
    durations_s = windows.floats('duration_s').filled()
    sampled_s = _sampled_s(windows.floats('gpu', 'sampled_s'), durations_s)
    util_pct = windows.floats('gpu', 'util_pct')
    means = {
        name: weighted_mean(windows.floats('gpu', name), durations_s) for name in MEANS
    }
    return GpuWindow(
        samples=total(windows.ints('gpu', 'samples')),
        util_pct=weighted_mean(util_pct, sampled_s),
        zero_pct=weighted_mean(windows.floats('gpu', 'zero_pct'), sampled_s),
        util_std_pct=pooled_std(
            util_pct, windows.floats('gpu', 'util_std_pct'), sampled_s
        ),
        mem_used_bytes=max_known(every.ints('gpu', 'mem_used_bytes')),
        source=same_or_mixed(windows.words('gpu', 'source')),
        temperature_c=max_known(every.floats('gpu', 'temperature_c')),
        throttle_reasons_pct=_fold_reasons(windows),
        others_mem_bytes=max_known(every.ints('gpu', 'others_mem_bytes')),
        sampled_s=sum_known(windows.floats('gpu', 'sampled_s')),
        **means,
    )


def plain_training(table: IntervalTable) -> IntervalTable:
    """Those without a validation or a save; all, where too few are."""
    mask = calm_mask(table)
    return table.where(mask) if sum(mask) >= MIN_CALM else table


def _sampled_s(told: Column[float], durations_s: Sequence[float]) -> Sequence[float]:
    """What utilisation stands for; older evidence says the interval at most."""
    if told.known is None:
        return told.filled()
    return [s if told_s is None else told_s for told_s, s in zip(told, durations_s)]


def _fold_reasons(windows: IntervalTable) -> dict[str, float]:
    """Mean share by reason, largest first; one that a window lacks was at 0 % in it."""
    told = windows.having('gpu', 'throttled_pct')
    seconds = told.floats('duration_s').filled()
    whole_s = math.fsum(seconds)
    field = ('gpu', 'throttle_reasons_pct')
    shares = {
        reason: math.fsum(map(mul, told.floats(*field, reason).filled(), seconds))
        / whole_s
        for reason in sorted(told.names(*field))
        if whole_s > 0
    }
    known = [(reason, share) for reason, share in shares.items() if share]
    return dict(sorted(known, key=lambda item: -item[1]))


def fold_gpu_idle(steady: IntervalTable) -> tuple[float | None, int]:
    """Share of the timed iterations that the GPU idled, by time, and their number."""
    timed = steady.having('gpu_idle_pct')
    timed = timed.where(timed.ints('gpu_idle_iterations').filled())
    iterations = timed.ints('gpu_idle_iterations')
    timed_s = map(mul, iterations.filled(), timed.floats('iter', 'mean_s').filled())
    return weighted_mean(timed.floats('gpu_idle_pct'), timed_s), total(iterations)


def fold_cards(steady: IntervalTable) -> dict[str, CardWindow]:
    """Fold the windows of each card of the host, by UUID, as those of our own."""
    by_card = {uuid: steady.having('cards', uuid) for uuid in steady.names('cards')}
    return {uuid: _fold_card(uuid, seen) for uuid, seen in by_card.items() if len(seen)}


def _fold_card(uuid: str, seen: IntervalTable) -> CardWindow:
    windows = plain_training(seen)
    durations_s = windows.floats('duration_s').filled()
    told_s = windows.floats('cards', uuid, 'sampled_s')
    sampled_s = _sampled_s(told_s, durations_s)
    return CardWindow(
        index=windows.ints('cards', uuid, 'index').filled()[0],
        samples=total(windows.ints('cards', uuid, 'samples')),
        util_pct=weighted_mean(windows.floats('cards', uuid, 'util_pct'), sampled_s),
        zero_pct=weighted_mean(windows.floats('cards', uuid, 'zero_pct'), sampled_s),
        mem_used_bytes=max_known(seen.ints('cards', uuid, 'mem_used_bytes')),
        sm_clock_mhz=weighted_mean(
            windows.floats('cards', uuid, 'sm_clock_mhz'), durations_s
        ),
        sampled_s=sum_known(told_s),
    )


def uuids_of_run(run: RunRecord, cards: Mapping[str, CardWindow]) -> set[str]:
    """Which cards of the host one rank alone knows to be the run's.

    Returns:
        All of them when it has as many ranks as the host has cards, else its own.
    """
    if run.device == 'cuda' and run.host.ranks_on_host == len(cards):
        return set(cards)
    return {run.gpu.uuid} if run.gpu and run.gpu.uuid else set()


def fold_imbalance(
    cards: Mapping[str, CardWindow], uuids: Collection[str | None]
) -> CardImbalance | None:
    """Compare cards of one host.

    Args:
        cards: By UUID.
        uuids: Of those that the run trains on; a card beside them may well idle.

    Returns:
        ``None`` when fewer than two of them have a known utilisation.
    """
    known = [
        (card.util_pct, card)
        for uuid, card in cards.items()
        if uuid in uuids and card.util_pct is not None
    ]
    if len(known) < 2:
        return None
    known.sort(key=lambda pair: (pair[0], pair[1].index))
    (least_pct, least), (most_pct, most) = known[0], known[-1]
    clocks = [(c.sm_clock_mhz, c.index) for _, c in known if c.sm_clock_mhz is not None]
    slow = min(clocks) if len(clocks) == len(known) else None
    return CardImbalance(
        cards=len(known),
        samples=sum(card.samples for _, card in known),
        util_min_pct=least_pct,
        util_max_pct=most_pct,
        least_index=least.index,
        most_index=most.index,
        clock_min_mhz=slow[0] if slow else None,
        clock_max_mhz=max(clocks)[0] if slow else None,
        slow_clock_index=slow[1] if slow else None,
    )
