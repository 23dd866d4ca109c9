"""All GPUs of the host, for one rank on it: imbalance shows without a collective."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mmgpu_hooks.schema import CardWindow
from mmgpu_hooks.telemetry.absent import Absent
from mmgpu_hooks.telemetry.clock import Clock, monotonic_s, wall_unix_s
from mmgpu_hooks.telemetry.gpu.answers import (
    checked_memory,
    checked_util,
    is_mig,
    read_text,
)
from mmgpu_hooks.telemetry.gpu.buffer import UtilBuffer, UtilSpan
from mmgpu_hooks.telemetry.gpu.lease import DriverLease
from mmgpu_hooks.telemetry.gpu.nvml import start_nvml, stop_nvml
from mmgpu_hooks.telemetry.gpu.queries import Queries, describe
from mmgpu_hooks.telemetry.gpu.vitals import read_sm_clock
from mmgpu_hooks.telemetry.gpu.window import UtilisationIntegral
from mmgpu_hooks.telemetry.source_error import SourceError

_MOST_CARDS = 64
"""More than any host has: a count beyond is garbage."""

_FIGURES = (UtilBuffer.FIGURE, 'util_pct', 'mem_used_bytes', 'sm_clock_mhz')


@dataclass(frozen=True)
class CardSample:
    """One look at one card."""

    index: int
    spans: tuple[UtilSpan, ...] = ()
    """Utilisation since the look before."""
    mem_used_bytes: int | None = None
    sm_clock_mhz: float | None = None


class HostCards:
    """The cards of the host, their handles kept open. Made by :func:`open_cards`.

    Reads come from one background thread. A forked child must leave it alone,
    except for :meth:`close`, which does nothing there.

    Args:
        nvml: The pynvml module, started; :meth:`close` ends it.
        clock: Monotonic clock.
        wall: Wall clock, the one that the driver stamps with.
    """

    def __init__(
        self, nvml: Any, *, clock: Clock = monotonic_s, wall: Clock = wall_unix_s
    ) -> None:
        self.left_out: dict[str, str] = {}
        """Why a card is not read (any more), by its UUID, or by its index."""
        self._lease = DriverLease(lambda: stop_nvml(nvml))
        self._cards: dict[str, _Card] = {}
        for index in range(min(int(nvml.nvmlDeviceGetCount()), _MOST_CARDS)):
            name = f'card {index}'
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                name = read_text(nvml.nvmlDeviceGetUUID, handle)
                self._cards[name] = _Card(nvml, index, handle, clock, wall)
            except Exception as error:  # noqa: BLE001, one card is not all
                self.left_out[name] = describe(error)

    def __len__(self) -> int:
        return len(self._cards)

    def reasons(self) -> dict[str, str]:
        """Why a figure, or a whole card, is missing now; 6 us for eight cards.

        Returns:
            Reasons by the name of a card that is left out, such as ``card 3`` or its
            UUID, and by UUID and figure, such as ``GPU-1a2b sm_clock_mhz``.
        """
        told = dict(self.left_out)
        for uuid, card in self._read_list():
            reasons = card.queries.reasons(_FIGURES)
            told.update({f'{uuid} {name}': why for name, why in reasons.items()})
        return told

    def read_samples(self) -> dict[str, CardSample]:
        """Look at every card, by UUID. One that is lost is left out from then on.

        Raises:
            SourceError: After `close`.
        """
        samples = {}
        with self._lease:
            for uuid, card in self._read_list():
                if self._lease.is_closing:
                    raise SourceError('the GPUs were read after they were closed')
                try:
                    samples[uuid] = card.read()
                except SourceError as error:
                    self.left_out[uuid] = error.reason
                    del self._cards[uuid]
        return samples

    def close(self) -> None:
        """Let the driver go. May be called twice; never raises, never blocks."""
        self._lease.close()

    def _read_list(self) -> list[tuple[str, _Card]]:
        return list(self._cards.items())


class _Card:
    def __init__(
        self, nvml: Any, index: int, handle: Any, clock: Clock, wall: Clock
    ) -> None:
        self.queries = Queries(nvml, under_mig=is_mig(nvml, handle))
        self._index = index
        self._handle = handle
        self._clock = clock
        self._buffer = UtilBuffer(self.queries, handle, clock=clock, wall=wall)
        self._looked_s = clock()

    def read(self) -> CardSample:
        nvml, handle, ask = self.queries.nvml, self._handle, self.queries.ask
        now_s = self._clock()
        elapsed_s, self._looked_s = now_s - self._looked_s, now_s
        spans = self._buffer.read()
        if spans is None:
            util = ask(
                'util_pct',
                lambda: checked_util(nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
            )
            spans = () if util is None else (UtilSpan(elapsed_s, util),)
        return CardSample(
            index=self._index,
            spans=spans,
            mem_used_bytes=ask(
                'mem_used_bytes',
                lambda: checked_memory(nvml.nvmlDeviceGetMemoryInfo(handle)),
            ),
            sm_clock_mhz=read_sm_clock(self.queries, handle),
        )


@dataclass
class CardFold:
    """Adds up looks at one card."""

    index: int
    _samples: int = 0
    _util: UtilisationIntegral = field(default_factory=UtilisationIntegral)
    _mem_used: int | None = None
    _clocks: list[float] = field(default_factory=list)

    def add(self, sample: CardSample) -> None:
        """Count one look."""
        self._samples += len(sample.spans)
        for span in sample.spans:
            self._util.add(*span)
        if sample.mem_used_bytes is not None:
            self._mem_used = max(self._mem_used or 0, sample.mem_used_bytes)
        if sample.sm_clock_mhz is not None:
            self._clocks.append(sample.sm_clock_mhz)

    def window(self) -> CardWindow:
        """Return the figures; ``None`` where nothing was given."""
        clocks = self._clocks
        return CardWindow(
            index=self.index,
            samples=self._samples,
            util_pct=self._util.mean_pct,
            zero_pct=self._util.zero_pct,
            mem_used_bytes=self._mem_used,
            sm_clock_mhz=sum(clocks) / len(clocks) if clocks else None,
            sampled_s=self._util.seconds or None,
        )


def open_cards(
    *, clock: Clock = monotonic_s, wall: Clock = wall_unix_s
) -> HostCards | Absent:
    """Open all cards of the host; meant for the first rank on it.

    Returns:
        The cards, to be closed by the caller, or why there is nothing to compare:
        with one card its own window says it all.
    """
    nvml = start_nvml()
    if isinstance(nvml, Absent):
        return nvml
    try:
        count = int(nvml.nvmlDeviceGetCount())
        if count > 1:
            return HostCards(nvml, clock=clock, wall=wall)
        reason = f'the driver lists {count} GPU(s): there is nothing to compare'
    except Exception as error:  # noqa: BLE001, drivers answer garbage too
        reason = f'NVML could not count the GPUs: {describe(error)}'
    stop_nvml(nvml)
    return Absent(reason)
