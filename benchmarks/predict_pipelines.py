"""The planted pipelines that predictions are measured on.

One half was looked at while the model was built. The other half is drawn from a random
generator and was not: nothing was tuned to it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist

BLOCK = 64
"""Images after which the planted costs have come up to their mean."""

UNSEEN_SEED, UNSEEN_COUNT = 88_117, 8


@dataclass(frozen=True)
class Pipeline:
    """What loading and training take; milliseconds, alone on the machine."""

    name: str
    cpu_ms: float
    """Of one image, mean."""
    wait_ms: float
    """Of one image, mean."""
    spread: float
    """Standard deviation over mean, from image to image."""
    batch: int
    step_ms: float
    step: str = 'sleep'
    """``sleep``, ``burn`` (one core) or ``threads`` (all cores)."""
    hogs: int = 0
    """Strangers that always want a core."""
    side: int = 64
    """Of the square images that are handed over."""
    is_unseen: bool = False
    recipe: str | None = None
    """Config of MMDetection whose pipeline loads instead."""

    @property
    def loading_s(self) -> float:
        """S: a batch's loading."""
        return self.batch * (self.cpu_ms + self.wait_ms) / 1000

    def guess_iter_s(self, workers: int, cores: int) -> float:
        """About what an iteration takes; for the length of a run only."""
        step_s, loading_s = self.step_ms / 1000, self.loading_s
        cpu_s = self.batch * self.cpu_ms / 1000
        if self.step != 'sleep':
            cpu_s += step_s
        floor_s = cpu_s / (cores / (1 + 0.5 * self.hogs))
        if not workers:
            return step_s + loading_s
        return max(step_s, loading_s / workers, floor_s)


SEEN = (
    Pipeline('CPU', 6, 0, 0.3, 4, 15),
    Pipeline('CPU, spread 1', 8, 0, 1, 2, 10),
    Pipeline('waiting', 0.5, 8, 0.2, 4, 12),
    Pipeline('waiting, spread 2', 0.3, 12, 2, 1, 5),
    Pipeline('mixed', 3, 3, 0.5, 4, 15, side=256),
    Pipeline('mixed, batch 16', 1, 2, 0.5, 16, 30, side=128),
    Pipeline('step-bound', 1, 0, 0.1, 4, 20),
    Pipeline('mixed, step burns', 4, 2, 0.5, 4, 20, 'burn'),
    Pipeline('CPU, step burns', 5, 0, 0.3, 4, 15, 'burn'),
    Pipeline('CPU, hog', 5, 0, 0.3, 4, 20, hogs=1),
    Pipeline('mixed, step burns, hog', 2, 6, 0.7, 4, 20, 'burn', hogs=1),
    Pipeline('long step', 3, 5, 1, 8, 60),
    Pipeline('mixed, spread 2', 4, 6, 2, 1, 5),
    Pipeline('mixed, step of 2 threads', 3, 3, 0.4, 4, 20, 'threads'),
)


def draw_unseen(seed: int = UNSEEN_SEED, count: int = UNSEEN_COUNT) -> list[Pipeline]:
    """Pipelines from a random generator."""
    rng = random.Random(seed)
    drawn = []
    for number in range(count):
        batch = rng.choice([1, 2, 4, 8, 16])
        loading_ms = math.exp(rng.uniform(math.log(12), math.log(80)))
        cpu_share = rng.choice([rng.uniform(0, 0.2), rng.random(), 1.0])
        drawn.append(
            Pipeline(
                f'drawn {number + 1}',
                cpu_ms=loading_ms * cpu_share / batch,
                wait_ms=loading_ms * (1 - cpu_share) / batch,
                spread=rng.choice([rng.uniform(0, 0.5), rng.uniform(0, 2)]),
                batch=batch,
                step_ms=math.exp(rng.uniform(math.log(5), math.log(60))),
                step=rng.choice(['sleep', 'sleep', 'burn', 'threads']),
                hogs=int(rng.random() < 0.25),
                side=rng.choice([32, 64, 128, 256]),
                is_unseen=True,
            )
        )
    return drawn


def draw_factors(spread: float, seed: int) -> Iterator[float]:
    """Log-normal factors of mean 1, without end.

    Each block holds the same quantiles in another order, so that a run of a few
    seconds sees what a long one would.
    """
    rng = random.Random(seed)
    sigma = math.sqrt(math.log1p(spread * spread))
    normal = NormalDist()
    block = [
        math.exp(sigma * normal.inv_cdf((index + 0.5) / BLOCK))
        for index in range(BLOCK)
    ]
    mean = sum(block) / BLOCK
    while True:
        rng.shuffle(block)
        yield from (factor / mean for factor in block)
