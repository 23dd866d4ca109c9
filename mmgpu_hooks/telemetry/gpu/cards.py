"""All GPUs of the host, for one rank on it: imbalance shows without a collective."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from typing import Any

from mmgpu_hooks.records import CardWindow
from mmgpu_hooks.telemetry.absent import Absent
from mmgpu_hooks.telemetry.clock import Clock, monotonic_s, wall_unix_s
from mmgpu_hooks.telemetry.gpu.answers import (
    checked_memory,
    checked_util,
    is_mig,
    read_text,
)
from mmgpu_hooks.telemetry.gpu.buffer import UtilBuffer, UtilSpan
from mmgpu_hooks.telemetry.gpu.nvml import start_nvml, stop_nvml
from mmgpu_hooks.telemetry.gpu.queries import Missed, Queries, describe
from mmgpu_hooks.telemetry.gpu.vitals import read_sm_clock
from mmgpu_hooks.telemetry.gpu.window import UtilisationIntegral
from mmgpu_hooks.telemetry.source_error import SourceError

_MOST_CARDS = 64
"""More than any host has: a count beyond is garbage."""


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
        self._nvml = nvml
        self._pid = os.getpid()
        self._closing = self._closed = False
        # held while the driver is in use; no child ever takes it
        self._in_use = threading.Lock()
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

    @property
    def not_offered(self) -> dict[str, dict[str, str]]:
        """By UUID and figure, why it is ``None`` for the whole run."""
        cards = {uuid: card.queries.refused.copy() for uuid, card in self._read_list()}
        return {uuid: reasons for uuid, reasons in cards.items() if reasons}

    @property
    def missed(self) -> dict[str, dict[str, Missed]]:
        """By UUID and figure, what some looks lacked."""
        cards = {uuid: card.queries.missed.copy() for uuid, card in self._read_list()}
        return {uuid: missed for uuid, missed in cards.items() if missed}

    def read_samples(self) -> dict[str, CardSample]:
        """Look at every card, by UUID. One that is lost is left out from then on.

        Raises:
            SourceError: After `close`.
        """
        samples = {}
        try:
            with self._in_use:
                for uuid, card in self._read_list():
                    if self._closing:
                        raise SourceError('the GPUs were read after they were closed')
                    try:
                        samples[uuid] = card.read()
                    except SourceError as error:
                        self.left_out[uuid] = error.reason
                        del self._cards[uuid]
        finally:
            if self._closing:  # while we were in the driver
                self._let_go()
        return samples

    def close(self) -> None:
        """Let the driver go. May be called twice; never raises, never blocks."""
        if os.getpid() != self._pid:
            return
        self._closing = True
        self._let_go()

    def _read_list(self) -> list[tuple[str, _Card]]:
        return list(self._cards.items())

    def _let_go(self) -> None:
        if not self._in_use.acquire(blocking=False):
            return
        try:
            if not self._closed:
                self._closed = True
                stop_nvml(self._nvml)
        finally:
            self._in_use.release()


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
