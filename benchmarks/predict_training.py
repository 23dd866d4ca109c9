"""Trains a planted pipeline with MMEngine, real workers and our hook, and stamps it."""

from __future__ import annotations

import hashlib
import itertools
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from mmengine.model import BaseModel
from torch import nn
from torch.utils.data import Dataset

from benchmarks.planted_job import build_runner, keep_evidence
from benchmarks.predict_pipelines import BLOCK, Pipeline, draw_factors

_CHUNK = b'\0' * 8192
_HASHES = 8
_MATRIX = 384
_MOST_IMAGES = 8192
_LEAST_ITERATIONS, _LEAST_OF_RECIPE = 48, 32


def burn_once() -> None:
    """A fixed piece of work, of some 50 us."""
    for _ in range(_HASHES):
        hashlib.sha256(_CHUNK).digest()


class Work:
    """Burns CPU by doing a fixed number of pieces, however long it takes.

    Args:
        piece: The piece.
    """

    def __init__(self, piece: Any) -> None:
        self._piece = piece
        self._piece_s = min(self._time(200) for _ in range(5)) / 200

    def _time(self, pieces: int) -> float:
        begin = time.perf_counter()
        for _ in range(pieces):
            self._piece()
        return time.perf_counter() - begin

    def burn(self, seconds: float) -> None:
        """Do what takes so long on a core of its own."""
        for _ in range(round(seconds / self._piece_s)):
            self._piece()


class PlantedImages(Dataset[dict]):
    """Images that cost CPU and waiting."""

    metainfo: dict[str, Any] = {}  # noqa: RUF012  # MMEngine asks the instance for it

    def __init__(self, pipeline: Pipeline, work: Work, length: int) -> None:
        self._pipeline, self._work, self._length = pipeline, work, length
        factors = draw_factors(pipeline.spread, seed=1)
        self._factors = list(itertools.islice(factors, min(length, _MOST_IMAGES)))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> dict[str, Any]:
        factor = self._factors[index % len(self._factors)]
        self._work.burn(factor * self._pipeline.cpu_ms / 1000)
        wait_s = factor * self._pipeline.wait_ms / 1000
        if wait_s > 0.0:
            time.sleep(wait_s)
        side = self._pipeline.side
        return {'inputs': torch.zeros(3, side, side), 'data_samples': index}


class StampedModel(BaseModel):
    """A step that sleeps or burns, and stamps when it begins."""

    def __init__(self, pipeline: Pipeline, work: Work) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self._seconds, self._kind = pipeline.step_ms / 1000, pipeline.step
        self._work = work
        self.begins: list[float] = []

    def forward(self, inputs: Any, data_samples: Any = None, mode: str = '') -> Any:
        return {'loss': self.weight.sum()}

    def train_step(self, data: Any, optim_wrapper: Any) -> Any:
        self.begins.append(time.perf_counter())
        if self._kind == 'sleep':
            time.sleep(self._seconds)
        else:
            self._work.burn(self._seconds)
        return {'loss': self.weight.detach()}


def make_works() -> dict[str, Work]:
    """How steps burn, by kind; ``burn`` is what loading does too."""
    torch.set_num_threads(torch.get_num_threads())
    matrix = torch.rand(_MATRIX, _MATRIX)
    burning = Work(burn_once)
    return {
        'sleep': burning,
        'burn': burning,
        'threads': Work(lambda: matrix @ matrix),
    }


def count_batches(
    pipeline: Pipeline, workers: int, prefetch: int, seconds: float, cores: int
) -> tuple[int, int]:
    """Batches to leave out and to measure; both whole blocks of images."""
    block = max(BLOCK // pipeline.batch, 1)
    least = _LEAST_ITERATIONS
    if pipeline.recipe is not None:  # as slow as they are, and in no blocks
        block, least = 1, _LEAST_OF_RECIPE
    wanted = max(seconds / pipeline.guess_iter_s(workers, cores), least)
    measured = max(round(wanted / block), 1) * block
    first = -(-max(2 * workers * prefetch, 16) // block) * block
    return first, measured


def train_once(
    folder: Path,
    pipeline: Pipeline,
    workers: int,
    prefetch: int,
    works: dict[str, Work],
    batches: tuple[int, int],
) -> tuple[float, Path]:
    """Train one epoch.

    Returns:
        Seconds of a steady iteration by the model's own stamps, and the evidence.
    """
    first, measured = batches
    # to the end workers keep making batches
    tail = workers * prefetch + 1
    length = (first + measured + tail) * pipeline.batch
    dataset = make_dataset(folder, pipeline, works['burn'], length)
    model = StampedModel(pipeline, works[pipeline.step])
    loader: dict[str, Any] = {'batch_size': pipeline.batch, 'num_workers': workers}
    if workers:
        loader['prefetch_factor'] = prefetch
    runner = build_runner(
        folder, model, dataset, loader, epochs=1, interval=max(first, 10)
    )
    runner.train()
    begins = model.begins
    iter_s = (begins[first + measured] - begins[first]) / measured
    return iter_s, keep_evidence(Path(runner.work_dir))


def make_dataset(folder: Path, pipeline: Pipeline, work: Work, length: int) -> Any:
    """The images of a pipeline, planted ones or those of a recipe."""
    if pipeline.recipe is None:
        return PlantedImages(pipeline, work, length)
    # MMDetection takes seconds to import
    from benchmarks.predict_mmdet import RecipeImages

    return RecipeImages(pipeline.recipe, folder / 'demo', length)


def _hog() -> None:
    while True:
        burn_once()


@contextmanager
def hogs(count: int) -> Iterator[None]:
    """Strangers that always want a core, as long as the block lasts."""
    context = multiprocessing.get_context('spawn')
    processes = [context.Process(target=_hog, daemon=True) for _ in range(count)]
    for process in processes:
        process.start()
    if processes:
        time.sleep(1.0)
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
            process.join()
