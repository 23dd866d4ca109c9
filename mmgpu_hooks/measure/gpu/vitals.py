"""What limits the card: clocks, temperature, power, and what holds the clocks down."""

from __future__ import annotations

from typing import Any

from mmgpu_hooks.measure.gpu.queries import GarbageError, Queries
from mmgpu_hooks.measure.gpu.table import function

# nvmlClocksEventReason*; idleness (1) and the user's own clock setting (2) hold
# nothing down that anybody wants up
_REASONS = {
    0x004: 'power_cap',
    0x008: 'hw_slowdown',
    0x010: 'sync_boost',
    0x020: 'thermal',
    0x040: 'hw_thermal',
    0x080: 'power_brake',
    0x100: 'display_clocks',
    0x200: 'board_limit',
    0x400: 'reliability',
}
_HARMLESS = 0x003
_GARBAGE_REASONS = 1 << 32
"""Bits so high mean nothing: some drivers answer with all ones."""

_SM_CLOCK, _MEM_CLOCK = 1, 2  # NVML_CLOCK_SM, NVML_CLOCK_MEM
_GPU_SENSOR = 0  # NVML_TEMPERATURE_GPU


def parse_throttle_reasons(bits: int) -> frozenset[str]:
    """Names of the reasons in NVML's bit mask; empty when nothing holds down.

    Raises:
        GarbageError: If it cannot be such a mask.

    Examples:
        >>> sorted(parse_throttle_reasons(0x1 | 0x4 | 0x40))
        ['hw_thermal', 'power_cap']
    """
    if not 0 <= bits < _GARBAGE_REASONS:
        raise GarbageError(f'the driver reported throttle reasons {bits:#x}')
    names = {name for bit, name in _REASONS.items() if bits & bit}
    if bits & ~(sum(_REASONS) | _HARMLESS):
        names.add('other')
    return frozenset(names)


def read_vitals(queries: Queries, handle: Any) -> dict[str, float]:
    """Clocks in MHz and temperature in degrees Celsius, by their record's names.

    Raises:
        SourceError: If the card or the driver was lost.
    """
    nvml = queries.nvml
    figures = {
        'sm_clock_mhz': queries.ask(
            'sm_clock_mhz',
            lambda: _within(10_000, nvml.nvmlDeviceGetClockInfo(handle, _SM_CLOCK)),
        ),
        'mem_clock_mhz': queries.ask(
            'mem_clock_mhz',
            lambda: _within(100_000, nvml.nvmlDeviceGetClockInfo(handle, _MEM_CLOCK)),
        ),
        'temperature_c': queries.ask(
            'temperature_c',
            lambda: _within(200, nvml.nvmlDeviceGetTemperature(handle, _GPU_SENSOR)),
        ),
    }
    return {name: value for name, value in figures.items() if value is not None}


def read_power(queries: Queries, handle: Any) -> dict[str, float]:
    """Power in watts: the slowest of the plain queries.

    Raises:
        SourceError: If the card or the driver was lost.
    """
    milliwatts = queries.ask(
        'power_w',
        lambda: _within(10_000_000, queries.nvml.nvmlDeviceGetPowerUsage(handle)),
    )
    return {} if milliwatts is None else {'power_w': milliwatts / 1e3}


def read_throttle_reasons(queries: Queries, handle: Any) -> frozenset[str] | None:
    """What holds the clocks down now; ``None`` where the driver does not tell.

    Raises:
        SourceError: If the card or the driver was lost.
    """
    nvml = queries.nvml

    def query() -> frozenset[str]:
        # drivers before 535 know the old name only
        try:
            function(nvml, 'nvmlDeviceGetCurrentClocksEventReasons')
            get_reasons = nvml.nvmlDeviceGetCurrentClocksEventReasons
        except (nvml.NVMLError, AttributeError):
            get_reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons
        return parse_throttle_reasons(int(get_reasons(handle)))

    reasons: frozenset[str] | None = queries.ask('throttled_pct', query)
    return reasons


def _within(most: int, value: int) -> float:
    if not 0 <= value <= most:
        raise GarbageError(
            f'the driver reported {value}, more than the {most} possible'
        )
    return float(value)
