"""Data sets with known loading times, and a loop that only loads, with a probe."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from mmgpu_hooks.measure.clock import monotonic_s, thread_cpu_s
from mmgpu_hooks.measure.ledger import TimeLedger
from mmgpu_hooks.measure.loader.probe import LoaderProbe
from mmgpu_hooks.measure.loader.waits import WaitTimer
from mmgpu_hooks.measure.loop_listener import LoopListener
from mmgpu_hooks.schema.recorded import WorkersWindow


def burn(seconds: float) -> None:
    """Computes for the given CPU seconds of this process."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


class Costly(Dataset):
    """Data set whose samples take known CPU and waiting times."""

    def __init__(
        self,
        length: int,
        *,
        burn_s: float = 0.0,
        sleep_s: float = 0.0,
        shape: tuple[int, ...] = (2,),
    ) -> None:
        self.length = length
        self.shape = shape
        self.burn_s = burn_s
        self.sleep_s = sleep_s

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        since = time.perf_counter()
        burn(self.burn_s)
        time.sleep(self.sleep_s)
        took_s = time.perf_counter() - since
        return {'inputs': torch.full(self.shape, float(index)), 'took_s': took_s}


class Texts(Dataset):
    """Data set whose samples are strings."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> str:
        return f'sample {index}'


class Counting(IterableDataset):
    """Iterable-style data set of ten numbers."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


class Sealed(type):
    """Metaclass whose classes cannot be patched."""

    def __setattr__(cls, name: str, value: object) -> None:
        raise TypeError(f'{cls.__name__} is sealed')


class Double(metaclass=Sealed):
    """Transform that cannot be patched and so cannot be timed."""

    def __call__(self, value: int) -> int:
        return 2 * value


class Piped(Dataset):
    """Data set that applies a pipeline of transforms."""

    def __init__(self, *transforms: Any) -> None:
        self.pipeline = list(transforms)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        value = index
        for transform in self.pipeline:
            value = transform(value)
        return value


class Loop(LoopListener):
    """Train loop that only loads batches, measured by a `LoaderProbe`."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.iterator: Any = None
        self.events: list[str] = []
        self.probe = LoaderProbe(loader, listener=self)
        self.waits = WaitTimer(TimeLedger(monotonic_s), thread_cpu_s, listener=self)

    def on_last_wait(self, iterator: Any) -> None:
        self.probe.before_wait(iterator)

    def on_iterator_begin(self) -> None:
        self.events.append('begin')

    def on_iterator_end(self, iterator: Any) -> None:
        self.events.append('end')
        if iterator is not None:
            self.waits.follow(iterator)

    def run_epoch(self) -> list[Any]:
        self.iterator = iter(self.loader)
        return list(self.iterator)

    def take(self, batches: int) -> None:
        """Takes batches from the current iterator."""
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
    """Context with a function that makes loading loops, which are closed at the end."""
    loops: list[Loop] = []

    def build(dataset: Any, **options: Any) -> Loop:
        loops.append(Loop(DataLoader(dataset, **options)))
        return loops[-1]

    yield build
    for loop in loops:
        loop.close()
