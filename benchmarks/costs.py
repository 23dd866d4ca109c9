"""Synthetic work for benchmark trainings: CPU loads, and random times of known mean."""

from __future__ import annotations

import functools
import hashlib
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from scipy.stats import norm

BLOCK = 64
"""Number of images in a block, whose random loading times have exactly the set mean."""

T = TypeVar('T')


class Work:
    """CPU load made of equal pieces of computation, each of known duration.

    Args:
        piece: The piece.
    """

    def __init__(self, piece: Callable[[], Any]) -> None:
        self._piece = piece
        self._piece_s = min(self._time(200) for _ in range(5)) / 200

    def _time(self, pieces: int) -> float:
        begin = time.perf_counter()
        for _ in range(pieces):
            self._piece()
        return time.perf_counter() - begin

    def burn(self, seconds: float) -> None:
        """Does as much CPU work as takes ``seconds`` on an otherwise idle core."""
        for _ in range(round(seconds / self._piece_s)):
            self._piece()


@functools.cache
def make_works() -> dict[str, Work]:
    """Returns CPU loads for train step and loading, by kind (``python`` holds the GIL).

    Its pieces are timed once, which takes a second or two.
    """
    chunk, matrix = b'\0' * 65536, torch.rand(384, 384)
    burning = Work(lambda: hashlib.sha256(chunk).digest())
    threads = Work(lambda: matrix @ matrix)
    python = Work(lambda: sum(number * number for number in range(500)))
    return {'sleep': burning, 'burn': burning, 'threads': threads, 'python': python}


def log_normal_block(spread: float, count: int = BLOCK) -> list[float]:
    """Returns quantiles of a log-normal distribution, scaled to a mean of 1.

    Args:
        spread: Standard deviation over mean, of the whole distribution.
        count: Quantiles.
    """
    sigma = math.sqrt(math.log1p(spread * spread))
    quantiles = np.exp(sigma * norm.ppf((np.arange(count) + 0.5) / count))
    values: list[float] = (quantiles / quantiles.mean()).tolist()
    return values


def pareto_block(shape: float, count: int = BLOCK) -> list[float]:
    """Returns quantiles of a Pareto distribution, scaled to a mean of 1.

    Args:
        shape: Of the tail: the share beyond x falls as x to the power of minus this.
        count: Quantiles.
    """
    quantiles = (1 - (np.arange(count) + 0.5) / count) ** (-1 / shape)
    values: list[float] = (quantiles / quantiles.mean()).tolist()
    return values


def draw_blocks(block: Sequence[T], seed: int) -> Iterator[T]:
    """Yields the values of a block endlessly, in a new random order for each round.

    So a run of a few seconds sees what a long one would.
    """
    rng, values = random.Random(seed), list(block)
    while True:
        rng.shuffle(values)
        yield from values


def guess_iter_s(
    workers: int,
    cores: float,
    *,
    cpu_s: float,
    wait_s: float,
    step_s: float,
    step_cpu_s: float,
) -> float:
    """Estimates the seconds of an iteration from the known loading and step times.

    Args:
        workers: ``num_workers``.
        cores: That the training has.
        cpu_s: CPU of loading a batch.
        wait_s: What loading a batch waits.
        step_s: Of a step.
        step_cpu_s: CPU of a step.
    """
    if not workers:
        return step_s + cpu_s + wait_s
    return max(step_s, (cpu_s + wait_s) / workers, (cpu_s + step_cpu_s) / cores)
