"""Datasets of known cost, and a train loop with a probe on its loader alone."""

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
    """Take so much CPU of this process, however long that takes."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


class Costly(Dataset):
    """Each sample burns and sleeps."""

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
    """Samples that are no tensors."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> str:
        return f'sample {index}'


class Counting(IterableDataset):
    """An iterable-style dataset."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


class Sealed(type):
    """Classes of this kind let nobody patch them."""

    def __setattr__(cls, name: str, value: object) -> None:
        raise TypeError(f'{cls.__name__} is sealed')


class Double(metaclass=Sealed):
    """A transform that cannot be timed."""

    def __call__(self, value: int) -> int:
        return 2 * value


class Piped(Dataset):
    """Applies transforms one after the other."""

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
    """A train loop that does nothing but ask for batches."""

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
    for loop in loops:
        loop.close()
