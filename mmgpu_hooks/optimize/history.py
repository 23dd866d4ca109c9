"""Makes the arrays of MMEngine's scalar histories grow by doubling.

MMEngine's ``HistoryBuffer`` copies its whole history for each value that is added, so
that an iteration takes longer the older the training is.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

import numpy as np
from mmengine.logging import HistoryBuffer

from mmgpu_hooks.judge.host_costs import ADDED_VALUE_S
from mmgpu_hooks.measure.histories import HistoryMeter
from mmgpu_hooks.measure.patches import Patches
from mmgpu_hooks.schema.recorded import SparedTime
from mmgpu_hooks.schema.text import phrase

_LEAST_SPARE, _MOST_SPARE = 1024, 131_072
"""Smallest and largest number of spare array places added to a full scalar history.

Between them, as many as there are values.
"""


class GrowingHistories:
    """Makes the arrays of all scalar histories of a Runner grow by doubling.

    Args:
        runner: About to enter its train loop.
        on_failure: Not called: what cannot be done quickly is done by MMEngine.
    """

    def __init__(self, runner: Any, on_failure: Callable[[Exception], None]) -> None:
        self._hub = hub = runner.message_hub
        original = hub.update_scalar
        self._is_open = True
        self._patches = Patches()

        @functools.wraps(original)
        def update_scalar(key: str, *args: Any, **kwargs: Any) -> None:
            original(key, *args, **kwargs)
            buffer = hub.log_scalars.get(key)
            if type(buffer) is HistoryBuffer and self._is_open:
                GrowingHistory.adopt(buffer)

        self._patches.set(hub, 'update_scalar', update_scalar)
        buffers = list(hub.log_scalars.values())
        for buffer in buffers:
            if type(buffer) is HistoryBuffer:
                GrowingHistory.adopt(buffer)
        longest = max((len(buffer.data[0]) for buffer in buffers), default=0)
        self.changed = phrase(
            'histories of scalars, of which the longest has {longest} values, are no '
            'longer copied for each new value',
            longest=longest,
        )

    @property
    def spared(self) -> SparedTime | None:
        """CPU seconds per iteration to extend all histories: by copies, or in place."""
        buffers = list(self._hub.log_scalars.values())
        copied = HistoryMeter(self._hub.log_scalars).read(
            max((len(buffer.data[0]) for buffer in buffers), default=0)
        )
        if copied is None:
            return None
        return SparedTime(
            plain_s=copied.copy_s, ours_s=copied.scalars * ADDED_VALUE_S, calls=1
        )

    def close(self) -> None:
        """Turns the scalar histories back into MMEngine's plain ``HistoryBuffer``."""
        self._is_open = False
        self._patches.close()
        for buffer in self._hub.log_scalars.values():
            if type(buffer) is GrowingHistory:
                buffer.release()


class GrowingHistory(HistoryBuffer):
    """A ``HistoryBuffer`` with spare capacity, whose copies and pickles have none."""

    _log: _Grown
    _counts: _Grown

    @classmethod
    def adopt(cls, buffer: HistoryBuffer) -> None:
        """Turns a plain ``HistoryBuffer`` into a growing one, in place."""
        own = buffer.__dict__
        own.update(
            _log=_Grown(own['_log_history']), _counts=_Grown(own['_count_history'])
        )
        buffer.__class__ = cls
        del own['_log_history'], own['_count_history']

    def release(self) -> None:
        """Turns the history into a plain ``HistoryBuffer`` again, in place."""
        own = self.__dict__
        own.update(
            _log_history=self._log.values.copy(),
            _count_history=self._counts.values.copy(),
        )
        self.__class__ = HistoryBuffer
        del own['_log'], own['_counts']

    # MMEngine reads and sets these two
    @property
    def _log_history(self) -> Any:
        return self._log.values

    @_log_history.setter
    def _log_history(self, values: Any) -> None:
        self._log = _Grown(values)

    @property
    def _count_history(self) -> Any:
        return self._counts.values

    @_count_history.setter
    def _count_history(self, values: Any) -> None:
        self._counts = _Grown(values)

    @property
    def data(self) -> tuple[Any, Any]:
        """Arrays of the history's values and counts, which the caller may change.

        As with MMEngine, the next value that is added goes into copies of them.
        """
        self._log.is_lent = self._counts.is_lent = True
        return self._log.values, self._counts.values

    def update(self, log_val: int | float, count: int | float = 1) -> None:
        """Adds a value to the history, and drops old values beyond ``max_length``."""
        log, counts = self._log, self._counts
        is_even = log.size == counts.size and self.max_length > 0
        if is_even and log.takes(log_val) and counts.takes(count):
            log.append(log_val, self.max_length)
            counts.append(count, self.max_length)
        else:
            super().update(log_val, count)

    def __reduce_ex__(self, protocol: Any) -> Any:
        ours = ('max_length', '_log', '_counts')
        plain, (values, counts) = HistoryBuffer.__new__(HistoryBuffer), self.data
        # in the order in which MMEngine sets them
        vars(plain).update(
            max_length=self.max_length,
            _log_history=values,
            _count_history=counts,
            **{name: own for name, own in vars(self).items() if name not in ours},
        )
        return plain.__reduce_ex__(protocol)


class _Grown:
    """NumPy array with spare capacity at its end, so that values are added cheaply.

    Args:
        values: What it begins with; it is not changed by what is added.
    """

    __slots__ = ('_end', '_first', '_store', 'is_lent')

    def __init__(self, values: Any) -> None:
        self._store, self.is_lent = values, False
        self._first, self._end = 0, len(values)

    @property
    def values(self) -> Any:
        """Values of the growing array now; values added later do not change them."""
        return self._store[self._first : self._end]

    @property
    def size(self) -> int:
        """Number of values in the growing array."""
        return self._end - self._first

    def takes(self, value: Any) -> bool:
        """True if appending the value by NumPy would keep the array's type."""
        kind, store = type(value), self._store
        if store.ndim != 1:
            return False
        if store.dtype == np.float64 and kind is float:
            return True
        is_number = store.dtype in (np.float64, np.int64) and kind is int
        return is_number and -(2**63) <= value < 2**63

    def append(self, value: float, most: int) -> None:
        """Appends a value to the growing array, and keeps the newest ``most`` values.

        Args:
            value: One that it :meth:`takes`.
            most: How many of the newest are kept.
        """
        if self.is_lent or self._end == len(self._store):
            self._grow()
        self._store[self._end] = value
        self._end += 1
        self._first = max(self._first, self._end - most)

    def _grow(self) -> None:
        kept, size = self.values, self.size
        spare = min(max(size, _LEAST_SPARE), _MOST_SPARE)
        self._store = np.empty(size + spare, kept.dtype)
        self._store[:size] = kept
        self._first, self._end, self.is_lent = 0, size, False
