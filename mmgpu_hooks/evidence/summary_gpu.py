"""Folds what the GPUs did over a run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from mmgpu_hooks.evidence.weights import (
    is_calm,
    max_known,
    pooled_std,
    same_or_mixed,
    sum_known,
    weighted_mean,
)
from mmgpu_hooks.records import (
    CardImbalance,
    CardWindow,
    GpuWindow,
    IntervalRecord,
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


def fold_gpu(steady: Sequence[IntervalRecord]) -> GpuWindow | None:
    """Fold the windows of the card that this rank trains on.

    Means are of plain training, where it has `MIN_CALM` intervals; what was largest is
    of all of them.
    """
    seen = [record for record in steady if record.gpu and record.gpu.samples]
    if not seen:
        return None
    every = [record.gpu for record in seen if record.gpu]
    windows = [(r.gpu, r.duration_s) for r in plain_training(seen) if r.gpu]
    sampled = [(gpu, _sampled_s(gpu, seconds)) for gpu, seconds in windows]
    means = {
        name: weighted_mean((getattr(gpu, name), seconds) for gpu, seconds in windows)
        for name in MEANS
    }
    return GpuWindow(
        samples=sum(gpu.samples for gpu, _ in windows),
        util_pct=weighted_mean((gpu.util_pct, seconds) for gpu, seconds in sampled),
        zero_pct=weighted_mean((gpu.zero_pct, seconds) for gpu, seconds in sampled),
        util_std_pct=pooled_std(
            [(gpu.util_pct, gpu.util_std_pct, seconds) for gpu, seconds in sampled]
        ),
        mem_used_bytes=max_known(gpu.mem_used_bytes for gpu in every),
        source=same_or_mixed(gpu.source for gpu, _ in windows),
        temperature_c=max_known(gpu.temperature_c for gpu in every),
        throttle_reasons_pct=_fold_reasons(windows),
        others_mem_bytes=max_known(gpu.others_mem_bytes for gpu in every),
        sampled_s=sum_known(gpu.sampled_s for gpu, _ in windows),
        **means,
    )


def plain_training(records: Sequence[IntervalRecord]) -> Sequence[IntervalRecord]:
    """Those without a validation or a save; all, where too few are."""
    calm = [record for record in records if is_calm(record)]
    return calm if len(calm) >= MIN_CALM else records


def _sampled_s(window: GpuWindow | CardWindow, duration_s: float) -> float:
    """What its utilisation stands for; older evidence says the interval at most."""
    return duration_s if window.sampled_s is None else window.sampled_s


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
    """Share of the timed iterations that the GPU idled, by time, and their number."""
    timed = [r for r in steady if r.gpu_idle_pct is not None and r.gpu_idle_iterations]
    share = weighted_mean(
        (r.gpu_idle_pct, r.gpu_idle_iterations * r.iter.mean_s) for r in timed
    )
    return share, sum(record.gpu_idle_iterations for record in timed)


def fold_cards(steady: Sequence[IntervalRecord]) -> dict[str, CardWindow]:
    """Fold the windows of each card of the host, by UUID, as those of our own."""
    by_card: dict[str, list[IntervalRecord]] = {}
    for record in steady:
        for uuid in record.cards:
            by_card.setdefault(uuid, []).append(record)
    return {uuid: _fold_card(uuid, records) for uuid, records in by_card.items()}


def _fold_card(uuid: str, records: Sequence[IntervalRecord]) -> CardWindow:
    windows = [(r.cards[uuid], r.duration_s) for r in plain_training(records)]
    sampled = [(card, _sampled_s(card, seconds)) for card, seconds in windows]
    return CardWindow(
        index=windows[0][0].index,
        samples=sum(card.samples for card, _ in windows),
        util_pct=weighted_mean((card.util_pct, s) for card, s in sampled),
        zero_pct=weighted_mean((card.zero_pct, s) for card, s in sampled),
        mem_used_bytes=max_known(r.cards[uuid].mem_used_bytes for r in records),
        sm_clock_mhz=weighted_mean((card.sm_clock_mhz, s) for card, s in windows),
        sampled_s=sum_known(card.sampled_s for card, _ in windows),
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
