"""GPM: the hardware counter of busy multiprocessors, on Hopper and later."""

from __future__ import annotations

import contextlib
from typing import Any, ClassVar

from mmgpu_hooks.measure.gpu.queries import NEVER, Queries

_METRIC = 2  # NVML_GPM_METRIC_SM_UTIL
_FIGURE = 'sm_active_pct'

_SUPPORT = 'GPM'
"""The name under which Queries keeps why there are no counters at all."""
_MOST_PCT = 101.0
"""The counter may end a little above the whole."""


class GpmCounters:
    """Means between two looks, so that nothing between them is missed.

    Costs two samples of the driver's memory, taken at the first look and given
    back by :meth:`close`, and two calls of the driver a look.

    Args:
        queries: Sorts what goes wrong.
        handle: The card.
    """

    BEHIND: ClassVar[dict[str, str]] = {_FIGURE: _SUPPORT}
    """The query whose miss leaves a figure out."""

    def __init__(self, queries: Queries, handle: Any) -> None:
        self._queries = queries
        self._handle = handle
        self._samples: list[Any] = []
        self._has_earlier = False
        self._request: Any = None

    def read(self) -> dict[str, float]:
        """Return what the counters say since the last look, by record names.

        Raises:
            SourceError: If the card or the driver was lost.
        """
        if _SUPPORT not in self._queries.refused and self._request is None:
            self._queries.ask(_SUPPORT, self._set_up)
        if _SUPPORT in self._queries.refused:
            self._queries.refuse(_FIGURE, self._queries.refused[_SUPPORT])
            return {}
        if self._request is None:
            return {}
        return self._queries.ask(_SUPPORT, self._look) or {}

    def close(self) -> None:
        """Give the samples back; may be called twice."""
        nvml = self._queries.nvml
        samples, self._samples = self._samples, []
        self._request = None
        for sample in samples:
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlGpmSampleFree(sample)

    def _set_up(self) -> bool:
        nvml = self._queries.nvml
        if self._queries.under_mig:
            self._queries.refuse(_SUPPORT, 'GPM counts the whole card, not a MIG slice')
            return False
        if not nvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice:
            self._queries.refuse(
                _SUPPORT, 'the GPU has no GPM counters (before Hopper)'
            )
            return False
        while len(self._samples) < 2:
            self._samples.append(nvml.nvmlGpmSampleAlloc())
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = 1
        self._request = request
        return True

    def _look(self) -> dict[str, float]:
        nvml, request = self._queries.nvml, self._request
        earlier, now = self._samples
        had_earlier, self._has_earlier = self._has_earlier, False
        nvml.nvmlGpmSampleGet(self._handle, now)
        self._samples = [now, earlier]
        self._has_earlier = True
        if not had_earlier:
            return {}
        request.sample1, request.sample2 = earlier, now
        metric = request.metrics[0]
        metric.metricId, metric.nvmlReturn = _METRIC, 0
        nvml.nvmlGpmMetricsGet(request)
        code, value = int(metric.nvmlReturn), float(metric.value)
        if code in NEVER:
            self._queries.refuse(_FIGURE, f'GPM does not count it: NVML error {code}')
        elif code != 0:
            self._queries.miss(_FIGURE, f'GPM could not count it: NVML error {code}')
        elif not 0.0 <= value <= _MOST_PCT:
            self._queries.miss(_FIGURE, f'GPM reported {value}')
        else:
            self._queries.found(_FIGURE)
            return {_FIGURE: min(value, 100.0)}
        return {}
