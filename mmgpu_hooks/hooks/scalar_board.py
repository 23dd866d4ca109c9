"""Puts our scalars where MMEngine's LoggerHook and its backends look for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmgpu_hooks.hooks.line_figures import LineFigures
from mmgpu_hooks.hooks.scalars import SCALARS
from mmgpu_hooks.schema import IntervalRecord

_KEYS = {name: f'train/{name}' for name in SCALARS}
"""Under which MMEngine's hub holds them."""


class ScalarBoard:
    """Keeps our scalars in MMEngine's message hub, at most one value each.

    A key left in the hub is printed again on every later line, and a history that
    grows is copied at each update and saved into each checkpoint. So ours are taken
    out or written over, and none is resumable.
    """

    def __init__(self, message_hub: Any) -> None:
        self._hub = message_hub
        self._line = LineFigures()
        self._buffers: dict[str, tuple[Any, Any]] = {}
        """MMEngine's own, as it once made them, and what holds their one value: to have
        it do so again takes as long as all the rest."""

    def clear(self) -> None:
        """Take our scalars out of the hub."""
        scalars = self._hub.log_scalars
        for key in _KEYS.values():
            scalars.pop(key, None)

    def add(
        self,
        record: IntervalRecord,
        waits_s: Sequence[float],
        iters_s: Sequence[float],
    ) -> None:
        """Keep one interval for the next line, as :meth:`LineFigures.add` does."""
        self._line.add(record, waits_s, iters_s)

    def publish(self) -> None:
        """Show the intervals since the last call on LoggerHook's next line."""
        scalars, buffers = self._hub.log_scalars, self._buffers
        values = self._line.take()
        for name, key in _KEYS.items():
            value = values.get(name)
            if value is None:
                scalars.pop(key, None)
                continue
            if key not in buffers:
                buffer = self._make_buffer(key, value)
                buffers[key] = buffer, buffer.data[0]
            buffer, array = buffers[key]
            if scalars.get(key) is not buffer:
                scalars[key] = buffer
            array[0] = value

    def _make_buffer(self, key: str, value: float) -> Any:
        self._hub.log_scalars.pop(key, None)
        # of a whole number MMEngine would make an array of whole numbers
        self._hub.update_scalar(key, float(value), resumed=False)
        # MMEngine saves the names of what is not resumable, and warns of each later
        getattr(self._hub, '_resumed_keys', {}).pop(key, None)
        return self._hub.log_scalars[key]
