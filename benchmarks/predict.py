"""Do predictions from one run hold? Planted pipelines against real trainings.

    python -m benchmarks.predict [--trials FILE] [--quick] [--output]

Each pipeline is trained with a grid of settings: real DataLoader workers under a real
MMEngine training with the hook. From each of these trainings alone all the others are
predicted. One part of the pipelines was used while the model was built; another is
drawn from a random generator, and nothing was tuned to it; the third is MMDetection's
own. About 13 minutes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
import os
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import DATASETS
from mmengine.utils import import_modules_from_strings
from scipy.stats import norm

from benchmarks.harness import (
    BUSY_LIMIT_PCT,
    Benchmark,
    Figure,
    OtherLoad,
    at_least,
    at_most,
    busy_programs,
    find_evidence,
    find_mmdet,
    quantile,
    say,
)
from benchmarks.toy import HOOK, OneWeight, Sized, build_runner
from mmgpu_hooks.experiment.demo_dataset import write_demo_dataset
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.workload import fit_workload
from mmgpu_hooks.model.prediction import predict_setting
from mmgpu_hooks.schema.judged import Prediction

MEDIAN_LIMIT, P90_LIMIT, COVERAGE_LIMIT = 5.0, 12.0, 90.0

GRID = ((0, 2), (1, 2), (1, 4), (2, 2), (2, 4), (4, 2), (4, 4), (8, 2), (8, 4))
"""``num_workers`` and ``prefetch_factor``; the latter says nothing without workers."""
QUICK_GRID = ((0, 2), (1, 2), (2, 2), (4, 2))

SECONDS, QUICK_SECONDS = 2.0, 0.5
"""Of each training, about."""
ATTEMPTS = 3
"""Trainings of one setting, until other programs keep out of one."""
BLOCK = 64
"""Images after which the planted costs have come up to their mean."""
UNSEEN_SEED, UNSEEN_COUNT = 88_117, 8
_MOST_IMAGES = 8192
_LEAST_ITERATIONS, _LEAST_OF_RECIPE = 48, 32


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
    """Other programs that always want a core."""
    side: int = 64
    """Of the square images that are handed over."""
    is_unseen: bool = False
    recipe: str | None = None
    """Config of MMDetection whose pipeline loads instead."""

    def guess_iter_s(self, workers: int, cores: int) -> float:
        """About what an iteration takes; for the length of a run only."""
        step_s = self.step_ms / 1000
        cpu_s = self.batch * self.cpu_ms / 1000
        loading_s = cpu_s + self.batch * self.wait_ms / 1000
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
MMDET = (
    # the milliseconds of loading are guesses, for the length of a training only
    Pipeline(
        'RetinaNet', 45, 0, 0.3, 1, 60, recipe='retinanet/retinanet_r50_fpn_1x_coco.py'
    ),
    Pipeline(
        'Mask R-CNN, LSJ', 95, 0, 0.3, 1, 60, recipe='common/lsj-100e_coco-instance.py'
    ),
    Pipeline(
        'YOLOX, Mosaic and MixUp',
        *(370, 0, 0.3, 1, 100),
        recipe='yolox/yolox_s_8xb8-300e_coco.py',
    ),
)
"""MMDetection's own training pipelines on the demo's images; the step only sleeps."""


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
    quantiles = np.exp(sigma * norm.ppf((np.arange(BLOCK) + 0.5) / BLOCK))
    block = (quantiles / quantiles.mean()).tolist()
    while True:
        rng.shuffle(block)
        yield from block


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


def make_works() -> dict[str, Work]:
    """How steps burn, by kind; ``burn`` is what loading does too."""
    chunk, matrix = b'\0' * 65536, torch.rand(384, 384)
    burning = Work(lambda: hashlib.sha256(chunk).digest())
    threads = Work(lambda: matrix @ matrix)
    return {'sleep': burning, 'burn': burning, 'threads': threads}


class PlantedImages(Sized):
    """Images that cost CPU and waiting."""

    def __init__(self, pipeline: Pipeline, work: Work, length: int) -> None:
        super().__init__(length)
        self._pipeline, self._work = pipeline, work
        factors = draw_factors(pipeline.spread, seed=1)
        self._factors = list(itertools.islice(factors, min(length, _MOST_IMAGES)))

    def __getitem__(self, index: int) -> dict[str, Any]:
        factor = self._factors[index % len(self._factors)]
        self._work.burn(factor * self._pipeline.cpu_ms / 1000)
        wait_s = factor * self._pipeline.wait_ms / 1000
        if wait_s > 0.0:
            time.sleep(wait_s)
        side = self._pipeline.side
        return {'inputs': torch.zeros(3, side, side), 'data_samples': index}


class RecipeImages(Sized):
    """The data set of a config of MMDetection, as long as is wanted.

    Args:
        recipe: The config.
        folder: Where the demo's images are, or will be.
        length: Of the data set.
    """

    def __init__(self, recipe: str, folder: Path, length: int) -> None:
        super().__init__(length)
        demo = write_demo_dataset(folder, images=64, width=800, height=600)
        # every box is a polygon too, for pipelines with masks
        content = json.loads(demo.annotation_file.read_text())
        for box in content['annotations']:
            x, y, width, height = box['bbox']
            right, bottom = x + width, y + height
            box['segmentation'] = [[x, y, right, y, right, bottom, x, bottom]]
        annotations = demo.annotation_file.with_name('annotations_with_masks.json')
        annotations.write_text(json.dumps(content))
        import_modules_from_strings('mmdet.datasets')
        config = Config.fromfile(find_mmdet() / 'configs' / recipe)
        dataset = config.train_dataloader.dataset
        _point_to(dataset, demo.image_folder, annotations)
        dataset['_scope_'] = 'mmdet'
        self._dataset = DATASETS.build(dataset)
        self.metainfo = self._dataset.metainfo

    def __getitem__(self, index: int) -> Any:
        return self._dataset[index % len(self._dataset)]


def _point_to(node: Any, images: Path, annotations: Path) -> None:
    """Set the files of every COCO data set in a config."""
    if isinstance(node, dict):
        if node.get('type') == 'CocoDataset':
            node['data_root'] = ''
            node['ann_file'] = str(annotations)
            node['data_prefix'] = {'img': str(images)}
            node['metainfo'] = {'classes': ('rectangle', 'ellipse')}
        node = node.values()
    elif not isinstance(node, (list, tuple)):
        return
    for value in node:
        _point_to(value, images, annotations)


def make_dataset(folder: Path, pipeline: Pipeline, work: Work, length: int) -> Any:
    """The images of a pipeline, planted ones or those of a recipe."""
    if pipeline.recipe is None:
        return PlantedImages(pipeline, work, length)
    return RecipeImages(pipeline.recipe, folder / 'demo', length)


class StampedModel(OneWeight):
    """A step that sleeps or burns, and stamps when it begins."""

    def __init__(self, pipeline: Pipeline, work: Work) -> None:
        super().__init__()
        self._seconds, self._kind = pipeline.step_ms / 1000, pipeline.step
        self._work = work
        self.begins: list[float] = []

    def train_step(self, data: Any, optim_wrapper: Any) -> Any:
        self.begins.append(time.perf_counter())
        if self._kind == 'sleep':
            time.sleep(self._seconds)
        else:
            self._work.burn(self._seconds)
        return {'loss': self.weight.detach()}


def count_batches(
    pipeline: Pipeline, workers: int, prefetch: int, seconds: float
) -> tuple[int, int]:
    """Batches to leave out and to measure; both whole blocks of images."""
    block, least = max(BLOCK // pipeline.batch, 1), _LEAST_ITERATIONS
    if pipeline.recipe is not None:  # as slow as they are, and in no blocks
        block, least = 1, _LEAST_OF_RECIPE
    iter_s = pipeline.guess_iter_s(workers, len(os.sched_getaffinity(0)))
    measured = max(round(max(seconds / iter_s, least) / block), 1) * block
    first = -(-max(2 * workers * prefetch, 16) // block) * block
    return first, measured


def train_once(
    pipeline: Pipeline,
    workers: int,
    prefetch: int,
    works: dict[str, Work],
    seconds: float,
) -> tuple[float, list[str]]:
    """Train one epoch.

    Returns:
        Seconds of a steady iteration by the model's own stamps, and the evidence.
    """
    first, measured = count_batches(pipeline, workers, prefetch, seconds)
    # to the end workers keep making batches
    length = (first + measured + workers * prefetch + 1) * pipeline.batch
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dataset = make_dataset(folder, pipeline, works['burn'], length)
        model = StampedModel(pipeline, works[pipeline.step])
        loader: dict[str, Any] = {'batch_size': pipeline.batch, 'num_workers': workers}
        if workers:
            loader['prefetch_factor'] = prefetch
        runner = build_runner(
            model,
            dataset,
            folder / 'run',
            loader=loader,
            hooks={'gpu_efficiency': HOOK},
            interval=max(first, 10),
        )
        runner.train()
        evidence = find_evidence(folder).read_text().splitlines()
    begins = model.begins
    return (begins[first + measured] - begins[first]) / measured, evidence


def measure(
    pipelines: Sequence[Pipeline],
    grid: Sequence[tuple[int, int]],
    seconds: float,
    attempts: int = ATTEMPTS,
) -> Iterator[dict[str, Any]]:
    """Train every pipeline with every setting, in random order."""
    works = make_works()
    for pipeline in pipelines:
        with busy_programs(pipeline.hogs):
            for workers, prefetch in random.Random(5).sample(grid, len(grid)):
                for _ in range(attempts):
                    load = OtherLoad()
                    iter_s, evidence = train_once(
                        pipeline, workers, prefetch, works, seconds
                    )
                    other_load_pct = load.read_pct()
                    if other_load_pct <= BUSY_LIMIT_PCT:
                        break
                say(f'{pipeline.name}: {workers} workers: {1000 * iter_s:.2f} ms')
                yield {
                    'pipeline': dataclasses.asdict(pipeline),
                    'setting': (workers, prefetch),
                    'iter_s': iter_s,
                    'other_load_pct': other_load_pct,
                    'evidence': evidence,
                }


class Case:
    """One setting, predicted from one other training."""

    def __init__(
        self, pipeline: Pipeline, measured_s: float, predicted: Prediction
    ) -> None:
        low_s, high_s = predicted.iter_time_low_s, predicted.iter_time_high_s
        self.pipeline = pipeline
        self.error_pct = 100 * abs(predicted.iter_time_s / measured_s - 1.0)
        self.is_covered = low_s <= measured_s <= high_s
        self.half_width_pct = 50 * (high_s - low_s) / predicted.iter_time_s


def judge_trials(trials: Sequence[dict[str, Any]]) -> list[Case]:
    """Predict each training from every other one of its pipeline."""
    cases = []
    by_name = sorted(trials, key=lambda one: one['pipeline']['name'])
    for _, group in itertools.groupby(by_name, lambda one: one['pipeline']['name']):
        same = list(group)
        pipeline = Pipeline(**same[0]['pipeline'])
        for run in same:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, 'gpu_efficiency.jsonl')
                path.write_text('\n'.join(run['evidence']) + '\n')
                workload: Any = fit_workload(Run.read(path))
            if hasattr(workload, 'reason'):
                say(f'not predicted from {pipeline.name}: {workload.reason}')
                continue
            for other in same:
                if other is not run:
                    found = predict_setting(workload, *other['setting'])
                    cases.append(Case(pipeline, other['iter_s'], found))
    return cases


def judge_cases(name: str, cases: Sequence[Case]) -> Iterator[Figure]:
    """Error and coverage of some cases."""
    errors = [case.error_pct for case in cases]
    covered = 100 * sum(case.is_covered for case in cases) / len(cases)
    widths = [case.half_width_pct for case in cases]
    high, worst = quantile(errors, 0.9), f'worst {max(errors):.0f} %'
    note = f'{len(cases)} predictions'
    yield at_most(
        f'{name}: error, median', quantile(errors, 0.5), MEDIAN_LIMIT, '%', note
    )
    yield at_most(f'{name}: error, 90th percentile', high, P90_LIMIT, '%', worst)
    figure = f'{name}: intervals that hold the truth'
    note = f'median half width {quantile(widths, 0.5):.0f} %'
    yield at_least(figure, covered, COVERAGE_LIMIT, '%', note)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, unless that was done, and judge."""
    benchmark = Benchmark('predict', __doc__ or '', argv, keeps_trials=True)
    warnings.filterwarnings('ignore')
    measured = measure([*SEEN, *draw_unseen(), *MMDET], GRID, SECONDS)
    if benchmark.is_quick:
        some = [SEEN[0], SEEN[4], draw_unseen()[0], MMDET[0]]
        measured = measure(some, QUICK_GRID, QUICK_SECONDS, attempts=1)
    trials = lines = benchmark.read_trials(measured)
    if not benchmark.is_quick:
        trials = [one for one in lines if one['other_load_pct'] <= BUSY_LIMIT_PCT]
    benchmark.shares_pct = [one['other_load_pct'] for one in trials]
    cases = judge_trials(trials)
    planted = [case for case in cases if case.pipeline.recipe is None]
    parts = {
        'all planted': planted,
        'seen': [case for case in planted if not case.pipeline.is_unseen],
        'unseen': [case for case in planted if case.pipeline.is_unseen],
        'MMDetection': [case for case in cases if case.pipeline.recipe is not None],
    }
    for name, some_cases in parts.items():
        if some_cases:
            benchmark.add(*judge_cases(name, some_cases))
    benchmark.add(
        Figure('trainings', len(trials), note=f'{len(lines) - len(trials)} left out')
    )
    for pipeline in dict.fromkeys(case.pipeline for case in cases):
        same = [case for case in cases if case.pipeline == pipeline]
        median, high, covered = judge_cases(pipeline.name, same)
        note = f'90th percentile {high.value:.1f} %, covered {covered.value:.0f} %'
        name = f'pipeline {pipeline.name}: error, median'
        benchmark.add(Figure(name, median.value, '%', note=note))
    return benchmark.finish()


if __name__ == '__main__':
    sys.exit(main())
