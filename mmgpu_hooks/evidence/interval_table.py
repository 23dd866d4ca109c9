"""All intervals of a run by column: what folding works on instead of the records.

The records of 100,000 intervals take gigabytes; the figures that are folded, 100 MB.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Callable

from mmgpu_hooks.evidence.column import Column, ColumnBuilder, Span, find_spans
from mmgpu_hooks.schema import SlowSample

FIGURES = (
    'iteration',
    'epoch',
    'iterations',
    'elapsed_s',
    'duration_s',
    'data_wait.total_s',
    'data_wait.mean_s',
    'data_wait.p50_s',
    'data_wait.p95_s',
    'data_wait.max_s',
    'step.total_s',
    'iter.mean_s',
    'iter.p50_s',
    'iter.p95_s',
    'iter.max_s',
    'ledger_s',
    'hooks_s',
    'data_wait_cpu_s',
    'first_waits',
    'first_wait_s',
    'images',
    'batch_bytes',
    'batch_tensors',
    'saves',
    'process_rss_bytes',
    'process_cpu_s',
    'process_run_delay_s',
    'system_cpu_pct',
    'largest_batch_pixels',
    'most_boxes',
    'host',
    'workers.count',
    'workers.window_s',
    'workers.iterations',
    'workers.cpu_s',
    'workers.run_delay_s',
    'workers.fresh',
    'workers.source',
    'workers.blocked_s',
    'workers.occupancy.count',
    'workers.occupancy.mean_s',
    'workers.occupancy.p50_s',
    'workers.occupancy.p95_s',
    'workers.occupancy.max_s',
    'workers.occupancy_std_s',
    'workers.batch_cpu.count',
    'workers.batch_cpu.mean_s',
    'workers.worker_batches',
    'workers.worker_cpu_s',
    'workers.worker_run_delay_s',
    'workers.worker_affinity_cpus',
    'workers.ready_mean',
    'workers.ready_zero_pct',
    'workers.asks',
    'workers.out_of_order',
    'workers.affinity_cpus',
    'workers.pss_bytes',
    'workers.transforms',
    'workers.timed_samples',
    'gpu',
    'gpu_idle_pct',
    'gpu_idle_iterations',
    'cards',
    'gpu_mem_peak_bytes',
    'gpu_mem_reserved_bytes',
    'cuda_memory',
)
"""What is kept of each interval: fields of `IntervalRecord`, with all that is in them.
Who folds another one adds it here."""

Path = tuple[Any, ...]
"""Names of fields; below a mapping its keys, below a list the positions in it."""


class IntervalTable:
    """The columns of some intervals, in the order of the file.

    Args:
        columns: By path, all of one length; a record's own path has `True` where it is
            there.
        maps: Paths of the mappings and lists, below which any name may be asked for.
        length: Intervals of the whole run.
        slowest: Slowest samples of the whole run, slowest first.
        pick: Takes what this table has of a column; all of it by default.
    """

    def __init__(
        self,
        columns: Mapping[Path, Column[Any]],
        maps: Collection[Path],
        length: int,
        slowest: tuple[SlowSample, ...] = (),
        pick: Callable[[Column[Any]], Column[Any]] | None = None,
    ) -> None:
        self._columns = columns
        self._maps = maps
        self._length = length
        self._pick = pick
        self.slowest = slowest

    def __len__(self) -> int:
        return len(self.ints('iteration'))

    def floats(self, *path: Any) -> Column[float]:
        """A column of seconds, shares or other real numbers.

        Args:
            *path: As in `FIGURES`, one name each.

        Raises:
            KeyError: If it is none of them.
        """
        return self._column(path, float)

    def ints(self, *path: Any) -> Column[int]:
        """A column of counts or bytes; see `floats`."""
        return self._column(path, int)

    def flags(self, *path: Any) -> Column[bool]:
        """A column of truth values; see `floats`."""
        return self._column(path, bool)

    def words(self, *path: Any) -> Column[str]:
        """A column of words; see `floats`."""
        return self._column(path, str)

    def names(self, *path: Any) -> list[Any]:
        """Keys that a mapping has in any interval of the run, in order of appearance.

        Of a list, the positions.
        """
        depth = len(path)
        below = [p for p in self._columns if len(p) > depth and p[:depth] == path]
        return list(dict.fromkeys(p[depth] for p in below))

    def after(self, count: int) -> IntervalTable:
        """All but the first ``count`` intervals."""
        return self._within([(count, self._length)])

    def having(self, *path: Any) -> IntervalTable:
        """The intervals in which a figure is known, or a record is there."""
        known = self._column(path).known
        return self if known is None else self.where(known)

    def where(self, mask: Iterable[Any]) -> IntervalTable:
        """The intervals for which a mask is true."""
        return self._within(find_spans(mask))

    def take(self, rows: Sequence[int]) -> IntervalTable:
        """The intervals with these numbers, in this order."""
        return self._picked(lambda column: column.take(rows))

    def _within(self, spans: Sequence[Span]) -> IntervalTable:
        # saves and validations are rare: a few long spans are copied fast
        if spans == [(0, len(self))]:
            return self
        return self._picked(lambda column: column.within(spans))

    def _picked(self, pick: Callable[[Column[Any]], Column[Any]]) -> IntervalTable:
        before = self._pick
        both = pick if before is None else lambda column: pick(before(column))
        return IntervalTable(
            self._columns, self._maps, self._length, self.slowest, both
        )

    def _column(self, path: Path, kind: type[Any] | None = None) -> Column[Any]:
        column = self._columns.get(path)
        if column is None:
            if not any(path[:depth] in self._maps for depth in range(len(path))):
                raise KeyError(path)
            # a key that no interval has
            column = ColumnBuilder(kind or float).build(self._length)
        if kind is not None and column.kind is not kind:
            raise TypeError(f'{path} is of {column.kind.__name__}')
        return column if self._pick is None else self._pick(column)
