"""Datasets of known cost, importable by workers however they start."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset


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


class Raising(Costly):
    """Fails at one index with an error that cannot be made from a message."""

    def __getitem__(self, index: int) -> Any:
        if index == 5:
            raise KeyError('no image', index)
        return super().__getitem__(index)


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
