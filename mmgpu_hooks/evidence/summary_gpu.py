"""Folds what the GPUs did over a run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from mmgpu_hooks.evidence.weights import (
    max_known,
    pooled_std,
    same_or_mixed,
    weighted_mean,
)
from mmgpu_hooks.records import (
    CardImbalance,
    CardWindow,
    GpuWindow,
    IntervalRecord,
    RunRecord,
)

_MEANS = (
    'util_pct',
    'zero_pct',
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


def fold_gpu(steady: Sequence[IntervalRecord]) -> GpuWindow | None:
    """Fold the windows of the card that this rank trains on."""
    windows = [(r.gpu, r.duration_s) for r in steady if r.gpu and r.gpu.samples]
    if not windows:
        return None
    means = {
        name: weighted_mean((getattr(gpu, name), seconds) for gpu, seconds in windows)
        for name in _MEANS
    }
    return GpuWindow(
        samples=sum(gpu.samples for gpu, _ in windows),
        util_std_pct=pooled_std(
            [(gpu.util_pct, gpu.util_std_pct, seconds) for gpu, seconds in windows]
        ),
        mem_used_bytes=max_known(gpu.mem_used_bytes for gpu, _ in windows),
        source=same_or_mixed(gpu.source for gpu, _ in windows),
        temperature_c=max_known(gpu.temperature_c for gpu, _ in windows),
        throttle_reasons_pct=_fold_reasons(windows),
        others_mem_bytes=max_known(gpu.others_mem_bytes for gpu, _ in windows),
        **means,
    )


def _fold_reasons(windows: Sequence[tuple[GpuWindow, float]]) -> dict[str, float]:
    """Mean share by reason, largest first; one that a window lacks was at 0 % in it."""
    told = [(gpu, seconds) for gpu, seconds in windows if gpu.throttled_pct is not None]
    shares = {
        reason: weighted_mean(
            (gpu.throttle_reasons_pct.get(reason, 0.0), seconds)
            for gpu, seconds in told
        )
        for reason in sorted(
            {name for gpu, _ in told for name in gpu.throttle_reasons_pct}
        )
    }
    known = [(reason, share) for reason, share in shares.items() if share]
    return dict(sorted(known, key=lambda item: -item[1]))


def fold_gpu_idle(steady: Sequence[IntervalRecord]) -> tuple[float | None, int]:
    """Share of the timed iterations that the GPU idled, and how many were timed."""
    timed = [r for r in steady if r.gpu_idle_pct is not None and r.gpu_idle_iterations]
    share = weighted_mean((r.gpu_idle_pct, r.gpu_idle_iterations) for r in timed)
    return share, sum(record.gpu_idle_iterations for record in timed)


def fold_cards(steady: Sequence[IntervalRecord]) -> dict[str, CardWindow]:
    """Fold the windows of each card of the host, by UUID."""
    by_card: dict[str, list[tuple[CardWindow, float]]] = {}
    for record in steady:
        for uuid, card in record.cards.items():
            by_card.setdefault(uuid, []).append((card, record.duration_s))
    return {
        uuid: CardWindow(
            index=windows[0][0].index,
            samples=sum(card.samples for card, _ in windows),
            util_pct=weighted_mean((card.util_pct, s) for card, s in windows),
            zero_pct=weighted_mean((card.zero_pct, s) for card, s in windows),
            mem_used_bytes=max_known(card.mem_used_bytes for card, _ in windows),
            sm_clock_mhz=weighted_mean((card.sm_clock_mhz, s) for card, s in windows),
        )
        for uuid, windows in by_card.items()
    }


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
