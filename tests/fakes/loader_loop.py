"""A train loop with a probe on its loader, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable

from torch.utils.data import DataLoader

from mmgpu_hooks.measure.clock import monotonic_s, thread_cpu_s
from mmgpu_hooks.measure.ledger import TimeLedger
from mmgpu_hooks.measure.loader.probe import LoaderProbe
from mmgpu_hooks.measure.loader.waits import WaitTimer
from mmgpu_hooks.schema.recorded import WorkersWindow


class Loop:
    """A train loop that does nothing but ask for batches."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.iterator: Any = None
        self.events: list[str] = []
        self.probe = LoaderProbe(loader)
        self.waits = WaitTimer(TimeLedger(monotonic_s), thread_cpu_s)
        self.waits.before_end = self.probe.before_wait
        self.probe.on_create_begin = lambda: self.events.append('begin')
        self.probe.on_create_end = self._created

    def _created(self, iterator: Any) -> None:
        self.events.append('end')
        if iterator is not None:
            self.waits.follow(iterator)

    def run_epoch(self) -> list[Any]:
        self.iterator = iter(self.loader)
        return list(self.iterator)

    def take(self, batches: int) -> None:
        """Go on with the iterator that there is."""
        for _ in range(batches):
            next(self.iterator)

    def close(self) -> None:
        self.waits.close()
        self.probe.close()
        # an iterator that an error's traceback holds is ended seconds later
        getattr(self.iterator, '_shutdown_workers', int)()

    def read(self) -> WorkersWindow:
        window = self.probe.read()
        assert window is not None
        return window


@contextmanager
def open_loops() -> Iterator[Callable[..., Loop]]:
    """Builds loops as a ``DataLoader`` is built, and closes them in the end."""
    loops: list[Loop] = []

    def build(dataset: Any, **options: Any) -> Loop:
        loops.append(Loop(DataLoader(dataset, **options)))
        return loops[-1]

    yield build
    for one in loops:
        one.close()
