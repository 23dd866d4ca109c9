"""The planted jobs whose settings are recommended and tried.

They stand for what jobs suffer from: loading that is CPU, waiting or both, steps that
sleep as those on a GPU and steps that burn CPU, short epochs, large workers, saves,
and nothing at all. Some are drawn from a random generator; nothing was tuned to them.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

from benchmarks.predict_pipelines import Pipeline

UNSEEN_SEED, UNSEEN_COUNT = 70_913, 5


@dataclass(frozen=True)
class Job:
    """A whole training, as a user would have configured it."""

    pipeline: Pipeline
    epochs: int = 2
    persistent_workers: bool = True
    saves_per_epoch: int = 0
    save_mib: int = 0
    """Of the model's weights that are saved."""
    worker_mib: int = 0
    """Memory that each worker takes."""

    @property
    def name(self) -> str:
        """Of the pipeline."""
        return self.pipeline.name


SEEN = (
    Job(Pipeline('CPU', 6, 0, 0.3, 4, 15)),
    Job(Pipeline('waiting', 0.5, 5, 0.2, 4, 14)),
    Job(Pipeline('long waiting', 0.3, 11, 0.3, 4, 14)),
    Job(Pipeline('storage', 0.5, 30, 0.3, 4, 25)),
    Job(Pipeline('mixed, step burns', 4, 2, 0.5, 4, 20, 'burn')),
    Job(Pipeline('nothing to gain', 0.7, 0, 0.1, 4, 20)),
    Job(Pipeline('nothing to gain, step burns', 0.7, 0, 0.1, 4, 20, 'burn')),
    Job(
        Pipeline('short epochs, workers end', 3, 0, 0.3, 4, 15),
        epochs=12,
        persistent_workers=False,
    ),
    Job(Pipeline('large workers', 3, 1, 0.5, 4, 15), worker_mib=300),
    Job(
        Pipeline('saves, step burns', 4, 0, 0.3, 4, 20, 'burn'),
        saves_per_epoch=2,
        save_mib=48,
    ),
    Job(Pipeline('busy main process', 3, 0, 0.4, 4, 20, 'threads')),
)


def draw_unseen(seed: int = UNSEEN_SEED, count: int = UNSEEN_COUNT) -> list[Job]:
    """Jobs from a random generator."""
    rng = random.Random(seed)
    drawn = []
    for number in range(count):
        batch = rng.choice([1, 2, 4, 8])
        loading_ms = math.exp(rng.uniform(math.log(4), math.log(40)))
        cpu_share = rng.choice([rng.random(), 1.0])
        pipeline = Pipeline(
            f'drawn {number + 1}',
            cpu_ms=loading_ms * cpu_share / batch,
            wait_ms=loading_ms * (1 - cpu_share) / batch,
            spread=rng.uniform(0, 1),
            batch=batch,
            step_ms=math.exp(rng.uniform(math.log(8), math.log(40))),
            step=rng.choice(['sleep', 'burn', 'threads']),
            side=rng.choice([32, 64, 128]),
            is_unseen=True,
        )
        is_short = rng.random() < 0.4
        job = Job(pipeline, epochs=10 if is_short else 2)
        if is_short:
            job = replace(job, persistent_workers=rng.random() < 0.5)
        if rng.random() < 0.3:
            job = replace(job, saves_per_epoch=1, save_mib=32)
        drawn.append(job)
    return drawn
