"""Log intervals of a run as numpy columns, and arithmetic that skips unknown values.

A column holds a float64 for each interval, and NaN where the figure is unknown.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from mmgpu_hooks.schema.recorded import IntervalRecord, ValidationRecord

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Column = np.ndarray[Any, np.dtype[np.float64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]
_Key = tuple[str, Optional[str]]


class Intervals:
    """Log intervals or validations of a training run, in the order of recording.

    Args:
        records: All of the run.
        unknown: Fields of an interval that these records do not have.
    """

    def __init__(
        self,
        records: Iterable[IntervalRecord | ValidationRecord],
        unknown: Iterable[str] = (),
    ) -> None:
        rows = tuple(records)
        nothing = (None,) * len(rows)
        self._values: dict[str, Sequence[Any]] = dict.fromkeys(unknown, nothing)
        self._values[''] = rows
        self._rows = np.arange(len(rows))
        self._columns: dict[_Key, Column] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def column(self, field: str, key: str | None = None) -> Column:
        """Returns one field of all log intervals as an array of floats; NaN is unknown.

        Args:
            field: Of the record, such as ``workers.cpu_s``.
            key: Where the field is a mapping, one of its keys.
        """
        column = self._columns.get((field, key))
        if column is None:
            values = self._read(field)
            if key is not None:
                values = [value.get(key) if value else None for value in values]
            column = np.array(values, dtype=np.float64)
            self._columns[field, key] = column
        return column[self._rows]

    def values(self, field: str) -> list[Any]:
        """Returns one field of all log intervals as a list; ``None`` is unknown."""
        values = self._read(field)
        return [values[row] for row in self._rows.tolist()]

    def having(self, field: str) -> Intervals:
        """Selects the log intervals in which a field of the record is known."""
        return self.where([value is not None for value in self.values(field)])

    def where(self, mask: ArrayLike) -> Intervals:
        """Selects the log intervals at which a boolean mask is true."""
        return self.take(np.flatnonzero(np.asarray(mask, dtype=bool)))

    def take(self, rows: ArrayLike) -> Intervals:
        """Selects log intervals by their indices, in the order of the indices."""
        some = Intervals(())
        some._values, some._columns = self._values, self._columns
        some._rows = self._rows[np.asarray(rows, dtype=np.intp)]
        return some

    def after(self, count: int) -> Intervals:
        """Selects all log intervals except the first ``count``."""
        return self.take(np.arange(count, max(len(self), count)))

    def calm(self) -> Mask:
        """Returns a boolean mask of the log intervals without validation or save."""
        busy_s = filled(self.column('ledger_s', 'validation'))
        busy_s += filled(self.column('ledger_s', 'checkpoint_save'))
        return np.equal(busy_s, 0.0)

    def _read(self, field: str) -> Sequence[Any]:
        """Reads a field, by its dotted name, of all records of the run."""
        if field not in self._values:
            whole, _, name = field.rpartition('.')
            get = attrgetter(name)
            self._values[field] = [
                None if record is None else get(record) for record in self._read(whole)
            ]
        return self._values[field]


def read_field(record: Any, name: str) -> Any:
    """Reads a record's nested field by dotted name; ``None`` if a part is missing."""
    for part in name.split('.'):
        record = getattr(record, part, None)
    return record


# figures of an edited file may overflow, which is no more than absurd
quiet = np.errstate(over='ignore', invalid='ignore')


def known(column: Column) -> Column:
    """Selects the values of a column (array of floats) that are not NaN (unknown)."""
    return column[~np.isnan(column)]


def filled(column: Column) -> Column:
    """Returns a copy of a column (array of floats) with 0 in place of NaN."""
    return np.where(np.isnan(column), 0.0, column)


@quiet
def total(column: Column) -> float:
    """Sums up the known values of a column; 0 when none is known."""
    return float(np.nansum(column))


def count_all(column: Column) -> int:
    """Sums up the known counts of a column to an integer; 0 when none is known."""
    whole = total(column)
    return int(whole) if math.isfinite(whole) else 0


def sum_all(column: Column) -> float | None:
    """Sums up a column; ``None`` for an empty column or any unknown value."""
    return None if not len(column) or np.isnan(column).any() else total(column)


def sum_known(column: Column) -> float | None:
    """Sums up the known values of a column; ``None`` when none is known."""
    return total(column) if len(known(column)) else None


def largest(column: Column) -> int | None:
    """Returns the largest known value of a column as an integer, or ``None``."""
    return int(np.nanmax(column)) if len(known(column)) else None


def smallest(column: Column) -> int | None:
    """Returns the smallest known value of a column as an integer, or ``None``."""
    return int(np.nanmin(column)) if len(known(column)) else None


def median(column: Column) -> float | None:
    """Returns the median of a column's known values; ``None`` if none is known."""
    # numpy would import its masked arrays for this
    values = known(column).tolist()
    return statistics.median(values) if values else None


@quiet
def average(column: Column, weights: Column) -> float | None:
    """Returns the weighted mean of a column; ``None`` if all values are unknown."""
    is_known = ~(np.isnan(column) | np.isnan(weights))
    whole = float(weights[is_known].sum())
    return float((column * weights)[is_known].sum()) / whole if whole > 0 else None


@quiet
def pooled_std(means: Column, stds: Column, weights: Column) -> float | None:
    """Returns the pooled standard deviation of groups, by their means and weights."""
    mean = average(np.where(np.isnan(stds), np.nan, means), weights)
    square = None if mean is None else average(stds**2 + (means - mean) ** 2, weights)
    return None if square is None else math.sqrt(square)
