"""Lists that the driver fills in, in memory of a size that makes sense."""

from __future__ import annotations

import ctypes
from typing import Any, Callable

from mmgpu_hooks.measure.gpu.queries import GarbageError

_MOST_ROWS = 65_536


class Table:
    """Rows that the driver fills in; the memory is kept between calls.

    pynvml's own wrappers ask for the size each time, and take the memory for any
    size that the driver names.

    Args:
        nvml: The pynvml module.
        row: Name of its ctypes structure in pynvml, which old ones may lack.
        spare: Whether to keep room for rows that appear between two calls.
    """

    def __init__(self, nvml: Any, row: str, *, spare: bool = False) -> None:
        self._nvml = nvml
        self._row = row
        self._spare = spare
        self._rows: Any = None
        self._capacity = 0

    def read(self, call: Callable[[Any, Any], int]) -> list[Any]:
        """Return the rows that the driver has.

        Args:
            call: Calls the driver with the reference to a count, which says how
                many rows there is room for and then how many there are, and with
                the rows (``None`` to be told the count); returns the code.

        Raises:
            NVMLError: What the driver says.
            GarbageError: If it names an impossible count.
            AttributeError: If pynvml lacks the structure.
        """
        for _ in range(3):  # the list may grow between two calls
            count = ctypes.c_uint(self._capacity)
            code = call(ctypes.byref(count), self._rows)
            if code not in (0, 7):
                raise self._nvml.NVMLError(code)
            if code == 0 and (self._rows is not None or count.value == 0):
                if count.value > self._capacity:
                    raise GarbageError(
                        f'the driver filled {count.value} of {self._capacity} rows'
                    )
                return list(self._rows[: count.value]) if self._rows else []
            self._make_room(count.value)
        raise GarbageError('the driver asked for more room three times')

    def _make_room(self, rows: int) -> None:
        wanted = 2 * rows + 5 if self._spare else rows
        if not 0 < wanted <= _MOST_ROWS:
            raise GarbageError(f'the driver reported {rows} rows')
        self._rows = (getattr(self._nvml, self._row) * wanted)()
        self._capacity = wanted


def function(nvml: Any, *names: str) -> Any:
    """The driver's function of the first of these names that it has.

    Raises:
        NVMLError: If it has none.
    """
    missing: Any = None
    for name in names:
        try:
            return nvml._nvmlGetFunctionPointer(name)
        except nvml.NVMLError as error:
            missing = error
    raise missing
