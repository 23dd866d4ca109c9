"""A train loop with a probe on its loader, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable

from torch.utils.data import DataLoader

from mmgpu_hooks.measure.loader.probe import LoaderProbe
from mmgpu_hooks.schema import WorkersWindow


class Loop:
    """A train loop that does nothing but ask for batches."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.iterator: Any = None
        self.iterations = 0
        self.events: list[str] = []
        self.probe = LoaderProbe(loader, lambda: self.iterations)
        self.probe.on_create_begin = lambda: self.events.append('begin')
        self.probe.on_create_end = lambda iterator: self.events.append('end')

    def run_epoch(self) -> list[Any]:
        batches = []
        self.probe.ask()
        self.iterator = iter(self.loader)
        for batch in self.iterator:
            self.probe.got()
            self.iterations += 1
            batches.append(batch)
            self.probe.ask()
        return batches

    def close(self) -> None:
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
