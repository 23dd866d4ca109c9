"""What every card of the host has free right now, slices of cards (MIG) included."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from mmgpu_hooks.measure.absent import Absent, SourceError
from mmgpu_hooks.measure.clock import Clock, wall_unix_s
from mmgpu_hooks.measure.gpu import (
    NEVER,
    NOT_FOUND,
    Queries,
    describe,
    is_sliced,
    read_memory,
    read_text,
    start_nvml,
    stop_nvml,
)
from mmgpu_hooks.measure.gpu_util import UtilBuffer, UtilisationIntegral, checked_util
from mmgpu_hooks.schema import CardState

_MOST_CARDS = 64
_MOST_SLICES = 16
"""More than any driver has: a count beyond is garbage."""

_PROHIBITED, _EXCLUSIVE_PROCESS = 2, 3  # nvmlComputeMode_t


def read_card_states(*, wall: Clock = wall_unix_s) -> tuple[CardState, ...] | Absent:
    """Look once at every card; one that cannot be read is there with the reason.

    Args:
        wall: Wall clock, the one that the driver stamps its samples with.

    Returns:
        The cards in the driver's order, each followed by its slices, or why there
        are none.
    """
    nvml = start_nvml()
    if isinstance(nvml, Absent):
        return nvml
    try:
        count = min(int(nvml.nvmlDeviceGetCount()), _MOST_CARDS)
        found = [s for index in range(count) for s in _read_card(nvml, index, wall)]
    except Exception as error:  # noqa: BLE001, drivers answer garbage too
        return Absent(f'NVML could not count the GPUs: {describe(error)}')
    finally:
        stop_nvml(nvml)
    return tuple(found) or Absent('the driver lists no GPU')


def _read_card(nvml: Any, index: int, wall: Clock) -> Iterator[CardState]:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid = read_text(nvml.nvmlDeviceGetUUID, handle)
        state = CardState(
            index, uuid=uuid, card_uuid=uuid, is_sliced=is_sliced(nvml, handle)
        )
        yield _read_state(nvml, handle, wall, state)
    except Exception as error:  # noqa: BLE001, one card is not all
        yield CardState(index, reason=f'cannot be read: {describe(error)}')
        return
    if state.is_sliced:
        yield from _read_slices(nvml, handle, index, uuid, wall)


def _read_slices(
    nvml: Any, handle: Any, index: int, card_uuid: str, wall: Clock
) -> Iterator[CardState]:
    for number in range(min(_most_slices(nvml, handle), _MOST_SLICES)):
        try:
            part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
            uuid = read_text(nvml.nvmlDeviceGetUUID, part)
            state = CardState(index, number, uuid=uuid, card_uuid=card_uuid)
            yield _read_state(nvml, part, wall, state)
        except Exception as error:  # noqa: BLE001, one slice is not all
            # a place that holds no slice
            if getattr(error, 'value', None) not in NOT_FOUND:
                reason = f'cannot be read: {describe(error)}'
                yield CardState(index, number, card_uuid=card_uuid, reason=reason)


def _most_slices(nvml: Any, handle: Any) -> int:
    try:
        return int(nvml.nvmlDeviceGetMaxMigDeviceCount(handle))
    except nvml.NVMLError as error:
        if error.value in NEVER:
            return 0
        raise


def _read_state(nvml: Any, handle: Any, wall: Clock, state: CardState) -> CardState:
    """Complete a state; a card that was lost meanwhile has the reason."""
    queries = Queries(nvml, under_mig=state.slice_index is not None)
    name = total = free = util = reason = None
    try:
        name = queries.ask('name', lambda: read_text(nvml.nvmlDeviceGetName, handle))
        memory = queries.ask('memory', lambda: read_memory(nvml, handle))
        if memory is None:
            why = queries.reasons()['memory']
            return replace(state, name=name, reason=f'its memory is unknown: {why}')
        total, free = memory[0], memory[0] - memory[1]
        util = _read_util(queries, handle, wall)
        reason = _read_refusal(queries, handle)
    except SourceError as error:
        reason = error.reason
    return replace(
        state,
        name=name,
        memory_total_bytes=total,
        memory_free_bytes=free,
        util_pct=util,
        reason=reason,
    )


def _read_util(queries: Queries, handle: Any, wall: Clock) -> float | None:
    """Mean over what the driver keeps: a training that waits for data swings."""
    spans = UtilBuffer(queries, handle, wall=wall).read_kept()
    if spans is None:
        nvml = queries.nvml
        util: float | None = queries.ask(
            'util_pct',
            lambda: checked_util(nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
        )
        return util
    mean = UtilisationIntegral()
    for span in spans:
        mean.add(*span)
    return mean.mean_pct


def _read_refusal(queries: Queries, handle: Any) -> str | None:
    """Why the driver would let no further process in, where it says so."""
    nvml = queries.nvml
    mode = queries.ask('compute_mode', lambda: nvml.nvmlDeviceGetComputeMode(handle))
    if mode == _PROHIBITED:
        return 'its compute mode is Prohibited'
    if mode == _EXCLUSIVE_PROCESS:
        running = queries.ask(
            'processes', lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        )
        if running:
            return f'process {running[0].pid} has it alone (Exclusive_Process)'
    return None
