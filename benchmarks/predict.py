"""Benchmark: iteration times predicted from one training, checked by other trainings.

    python -m benchmarks.predict [--trials FILE] [--only PART] [--quick] [--output]

Each pipeline is trained with a grid of settings: real DataLoader workers under a real
MMEngine training with the hook. From each of these trainings alone all the others are
predicted. One part of the pipelines was used while the model was built (seen); another
is drawn from a random generator, and nothing was tuned to it (unseen); the third is
MMDetection's own.

The fourth was planted by people who did not write the model (others). Each of its
settings is trained twice, each time with the samples in another order, and the truth is
the mean. Where the two differ by more than 5 %, an interval must hold both, and the
error is not judged. About 25 minutes.
"""

from __future__ import annotations

import argparse
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
from statistics import fmean
from typing import Any, NamedTuple

import torch
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS
from mmengine.utils import import_modules_from_strings

from benchmarks.costs import (
    BLOCK,
    Work,
    draw_blocks,
    guess_iter_s,
    log_normal_block,
    make_works,
)
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
from benchmarks.planted_by_others import OTHERS, PlantedByOthers, Step
from benchmarks.toy import HOOK, OneWeight, Sized, build_runner
from mmgpu_hooks.experiment.demo_dataset import write_demo_dataset
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.model.prediction import predict_setting
from mmgpu_hooks.schema.judged import Prediction

MEDIAN_LIMIT, P90_LIMIT, COVERAGE_LIMIT = 5.0, 12.0, 90.0
OTHERS_MEDIAN_LIMIT, OTHERS_P90_LIMIT = 3.0, 10.0
OTHERS_COVERAGE_LIMIT, ONE_COVERAGE_LIMIT, WIDTH_LIMIT = 88.0, 70.0, 14.0
"""Per cent limits of prediction intervals: coverage (all, one pipeline), half width."""
REPEATS_WITHIN_PCT = 5.0
"""Largest per cent by which repeated trainings differ if their mean counts as truth."""

Grid = Sequence[tuple[int, int]]
GRID: Grid = ((0, 2), (1, 2), (1, 4), (2, 2), (2, 4), (4, 2), (4, 4), (8, 2), (8, 4))
"""Pairs of ``num_workers`` and ``prefetch_factor`` that are trained with."""
OTHERS_GRID: Grid = ((0, 2), (1, 2), (2, 2), (4, 2), (8, 2))
QUICK_GRID: Grid = ((0, 2), (1, 2), (2, 2), (4, 2))
OTHERS_REPEATS = 2
"""Number of trainings per setting, for pipelines designed by others."""

SECONDS, OTHERS_SECONDS, QUICK_SECONDS = 2.0, 2.5, 0.5
"""Approximate seconds per training: by default, pipelines by others, quick run."""
ORIGINS = ('seen', 'unseen', 'MMDetection', 'others')
"""Origins of the benchmark's pipelines, by which results are grouped."""
ATTEMPTS = 3
"""Maximum number of trainings per setting, repeated while other programs disturb."""
UNSEEN_SEED, UNSEEN_COUNT = 88_117, 8
_MOST_IMAGES = 8192
_LEAST_ITERATIONS, _LEAST_OF_RECIPE = 48, 32


@dataclass(frozen=True)
class Pipeline:
    """Synthetic pipeline with known times of loading and step, in milliseconds."""

    name: str
    cpu_ms: float
    """Mean CPU time in milliseconds to load one image."""
    wait_ms: float
    """Mean waiting time in milliseconds to load one image."""
    spread: float
    """Standard deviation of the time to load an image, divided by its mean."""
    batch: int
    step_ms: float
    step: str = 'sleep'
    """Kind of train step: ``sleep``, ``burn`` (one core) or ``threads`` (all cores)."""
    hogs: int = 0
    """Number of other processes that each keep one core busy."""
    side: int = 64
    """Side of the square images in pixels."""
    origin: str = 'seen'
    """Origin of the pipeline: ``seen``, ``unseen``, ``MMDetection`` or ``others``."""
    recipe: str | None = None
    """Path of an MMDetection config whose pipeline is used instead, or ``None``."""

    collate = staticmethod(pseudo_collate)

    @property
    def period(self) -> int:
        """Number of images over which random loading times average out; 1 if never."""
        return BLOCK if self.recipe is None else 1

    def guess_iter_s(self, workers: int, cores: int) -> float:
        """Estimates an iteration's seconds from the known loading and step times."""
        step_s = self.step_ms / 1000
        return guess_iter_s(
            workers,
            cores / (1 + 0.5 * self.hogs),
            cpu_s=self.batch * self.cpu_ms / 1000,
            wait_s=self.batch * self.wait_ms / 1000,
            step_s=step_s,
            step_cpu_s=0.0 if self.step == 'sleep' else step_s,
        )

    def make_dataset(
        self, folder: Path, works: dict[str, Work], length: int, seed: int = 1
    ) -> Any:
        """Returns the data set: images with known costs, or an MMDetection config's."""
        if self.recipe is None:
            return PlantedImages(self, works['burn'], length, seed)
        return RecipeImages(self.recipe, folder / 'demo', length)

    def make_step(self, works: dict[str, Work]) -> Step:
        """Returns the training process's work on one batch, as a function."""
        seconds, work = self.step_ms / 1000, works[self.step]
        if self.step == 'sleep':
            return lambda batch: time.sleep(seconds)
        return lambda batch: work.burn(seconds)


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
        'RetinaNet',
        cpu_ms=45,
        wait_ms=0,
        spread=0.3,
        batch=1,
        step_ms=60,
        origin='MMDetection',
        recipe='retinanet/retinanet_r50_fpn_1x_coco.py',
    ),
    Pipeline(
        'Mask R-CNN, LSJ',
        cpu_ms=95,
        wait_ms=0,
        spread=0.3,
        batch=1,
        step_ms=60,
        origin='MMDetection',
        recipe='common/lsj-100e_coco-instance.py',
    ),
    Pipeline(
        'YOLOX, Mosaic and MixUp',
        cpu_ms=370,
        wait_ms=0,
        spread=0.3,
        batch=1,
        step_ms=100,
        origin='MMDetection',
        recipe='yolox/yolox_s_8xb8-300e_coco.py',
    ),
)
"""Pipelines of MMDetection's own configs on the demo's images; train steps sleep."""


def draw_unseen(seed: int = UNSEEN_SEED, count: int = UNSEEN_COUNT) -> list[Pipeline]:
    """Draws pipelines with random times that the prediction model was not tuned on."""
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
                origin='unseen',
            )
        )
    return drawn


class PlantedImages(Sized):
    """Data set whose images take known CPU and waiting time."""

    def __init__(self, pipeline: Pipeline, work: Work, length: int, seed: int) -> None:
        super().__init__(length)
        self._pipeline, self._work = pipeline, work
        factors = draw_blocks(log_normal_block(pipeline.spread), seed)
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
    """Data set of an MMDetection config, repeated to the required length.

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
    """Sets annotation file and image folder of every COCO data set in a config."""
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


class StampedModel(OneWeight):
    """Model with a known train step, which records when each step begins."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        self._step = step
        self.begins: list[float] = []

    def train_step(self, data: Any, optim_wrapper: Any) -> Any:
        self.begins.append(time.perf_counter())
        self._step(data)
        return {'loss': self.weight.detach()}


def count_batches(
    pipeline: Pipeline | PlantedByOthers, workers: int, prefetch: int, seconds: float
) -> tuple[int, int]:
    """Returns how many batches to skip first, and how many to measure after them."""
    block = math.lcm(pipeline.period, pipeline.batch) // pipeline.batch
    # recipes are as slow as they are, and cost what they do in no blocks
    of_recipe = pipeline.origin == 'MMDetection'
    least = _LEAST_OF_RECIPE if of_recipe else _LEAST_ITERATIONS
    iter_s = pipeline.guess_iter_s(workers, len(os.sched_getaffinity(0)))
    measured = max(round(max(seconds / iter_s, least) / block), 1) * block
    first = -(-max(2 * workers * prefetch, 16) // block) * block
    return first, measured


class TrainedEpoch(NamedTuple):
    """Result of one epoch that was trained with a pipeline and a loader setting."""

    iter_s: float
    """Mean seconds of a steady iteration, recorded by the model."""
    evidence: list[str]
    """Lines of the evidence file that the hook wrote."""


def train_once(
    pipeline: Pipeline | PlantedByOthers,
    workers: int,
    prefetch: int,
    works: dict[str, Work],
    seconds: float,
    seed: int = 1,
) -> TrainedEpoch:
    """Trains one epoch of a pipeline with one loader setting."""
    first, measured = count_batches(pipeline, workers, prefetch, seconds)
    # to the end workers keep making batches
    length = (first + measured + workers * prefetch + 1) * pipeline.batch
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dataset = pipeline.make_dataset(folder, works, length, seed)
        model = StampedModel(pipeline.make_step(works))
        loader: dict[str, Any] = {
            'batch_size': pipeline.batch,
            'num_workers': workers,
            'collate_fn': {'type': pipeline.collate},
        }
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
    iter_s = (begins[first + measured] - begins[first]) / measured
    return TrainedEpoch(iter_s, evidence)


def measure(
    pipelines: Sequence[Pipeline | PlantedByOthers],
    grid: Grid,
    seconds: float,
    attempts: int = ATTEMPTS,
    repeats: int = 1,
) -> Iterator[dict[str, Any]]:
    """Trains all pipelines with all loader settings, in random order.

    Args:
        pipelines: In turn.
        grid: Workers and prefetch factors.
        seconds: Of a training, about.
        attempts: Trainings at most, until other programs keep out of one.
        repeats: Trainings of each setting, each with the samples in another order.
    """
    works = make_works()
    for pipeline in pipelines:
        seeds = range(1, repeats + 1)
        settings = [(*setting, seed) for setting in grid for seed in seeds]
        order = random.Random(5).sample(settings, len(settings))
        with busy_programs(pipeline.hogs):
            for workers, prefetch, seed in order:
                for _ in range(attempts):
                    load = OtherLoad()
                    trained = train_once(
                        pipeline, workers, prefetch, works, seconds, seed
                    )
                    other_load_pct = load.read_pct()
                    if other_load_pct <= BUSY_LIMIT_PCT:
                        break
                shown = f'{1000 * trained.iter_s:.2f} ms'
                say(f'{pipeline.name}: {workers} workers: {shown}')
                yield {
                    'pipeline': pipeline.name,
                    'origin': pipeline.origin,
                    'setting': (workers, prefetch),
                    'iter_s': trained.iter_s,
                    'other_load_pct': other_load_pct,
                    'evidence': trained.evidence,
                }


class Case:
    """Prediction for one loader setting, made from a training with another setting.

    Args:
        pipeline: Its name.
        origin: Of the pipeline.
        measured_s: Iterations of the trainings of this setting.
        predicted: What is to be judged.
    """

    def __init__(
        self,
        pipeline: str,
        origin: str,
        measured_s: Sequence[float],
        predicted: Prediction,
    ) -> None:
        low_s, high_s = predicted.iter_time_low_s, predicted.iter_time_high_s
        fastest_s, slowest_s = min(measured_s), max(measured_s)
        truth_s = fmean(measured_s)
        self.pipeline, self.origin = pipeline, origin
        self.key = pipeline, predicted.num_workers, predicted.prefetch_factor
        """Pipeline and loader setting whose iteration time is predicted."""
        self.repeats = 100 * (slowest_s / fastest_s - 1.0) <= REPEATS_WITHIN_PCT
        """True if the setting's trainings agree, so that their mean is the truth."""
        self.error_pct = 100 * abs(predicted.iter_time_s / truth_s - 1.0)
        self.is_covered = low_s <= fastest_s and slowest_s <= high_s
        if self.repeats:
            self.is_covered = low_s <= truth_s <= high_s
        self.half_width_pct = 50 * (high_s - low_s) / predicted.iter_time_s


def gather_truths(
    trials: Sequence[dict[str, Any]],
) -> dict[tuple[int, int], list[float]]:
    """Returns the true iteration times of a pipeline in seconds, by loader setting.

    A setting of which a training was left out is no truth where two are wanted.
    """
    truths: dict[tuple[int, int], list[float]] = {}
    for trial in trials:
        truths.setdefault(tuple(trial['setting']), []).append(trial['iter_s'])
    least = OTHERS_REPEATS if trials[0]['origin'] == 'others' else 1
    return {setting: took for setting, took in truths.items() if len(took) >= least}


def judge_trials(trials: Sequence[dict[str, Any]]) -> list[Case]:
    """Predicts iteration times by loader setting from trainings with other settings."""
    cases = []
    by_name = sorted(trials, key=lambda trial: trial['pipeline'])
    for name, group in itertools.groupby(by_name, lambda trial: trial['pipeline']):
        same = list(group)
        truths = gather_truths(same)
        for run in same:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, 'gpu_efficiency.jsonl')
                path.write_text('\n'.join(run['evidence']) + '\n')
                recorded = Run.read(path)
                workload = recorded.workload
            if workload is None:
                say(f'not predicted from {name}: {recorded.why_no_workload}')
                continue
            for setting, measured_s in truths.items():
                if setting != tuple(run['setting']):
                    found = predict_setting(workload, *setting)
                    cases.append(Case(name, run['origin'], measured_s, found))
    return cases


def quantile_or_none(values: Sequence[float], share: float) -> float | None:
    """Returns a quantile of the values; ``None`` if there are none."""
    return quantile(values, share) if values else None


def covered_pct(cases: Sequence[Case]) -> float | None:
    """Returns the per cent of prediction intervals that contain the true value."""
    if not cases:
        return None
    return 100 * sum(case.is_covered for case in cases) / len(cases)


def median_width_pct(cases: Sequence[Case]) -> float | None:
    """Returns the median half width of prediction intervals, in per cent."""
    return quantile_or_none([case.half_width_pct for case in cases], 0.5)


def judge_cases(name: str, cases: Sequence[Case]) -> Iterator[Figure]:
    """Returns figures on errors of predictions and coverage of their intervals."""
    errors = [case.error_pct for case in cases]
    high, worst = quantile(errors, 0.9), f'worst {max(errors):.0f} %'
    note = f'{len(cases)} predictions'
    yield at_most(
        f'{name}: error, median', quantile(errors, 0.5), MEDIAN_LIMIT, '%', note
    )
    yield at_most(f'{name}: error, 90th percentile', high, P90_LIMIT, '%', worst)
    figure = f'{name}: intervals that hold the truth'
    note = f'median half width {median_width_pct(cases):.0f} %'
    yield at_least(figure, covered_pct(cases), COVERAGE_LIMIT, '%', note)


def judge_others(names: Sequence[str], cases: Sequence[Case]) -> Iterator[Figure]:
    """Returns figures on predictions for pipelines that were designed by others.

    Args:
        names: Of the pipelines that were trained.
        cases: Theirs. A pipeline without any misses its target.
    """
    part, settings = 'planted by others', {case.key: case.repeats for case in cases}
    errors = [case.error_pct for case in cases if case.repeats]
    note = f'{len(errors)} predictions, where trainings repeat'
    median = quantile_or_none(errors, 0.5)
    yield at_most(f'{part}: error, median', median, OTHERS_MEDIAN_LIMIT, '%', note)
    figure, high = f'{part}: error, 90th percentile', quantile_or_none(errors, 0.9)
    note = f'worst {max(errors):.0f} %' if errors else 'no setting repeats'
    yield at_most(figure, high, OTHERS_P90_LIMIT, '%', note)
    figure, note = f'{part}: intervals that hold the truth', f'{len(cases)} predictions'
    yield at_least(figure, covered_pct(cases), OTHERS_COVERAGE_LIMIT, '%', note)
    width = median_width_pct(cases)
    yield at_most(f'{part}: half width, median', width, WIDTH_LIMIT, '%')
    figure = f'{part}: settings whose trainings repeat within {REPEATS_WITHIN_PCT:g} %'
    yield Figure(figure, sum(settings.values()), note=f'of {len(settings)}')
    for name in names:
        same = [case for case in cases if case.pipeline == name]
        yield judge_one_of_others(name, same)


def judge_one_of_others(name: str, cases: Sequence[Case]) -> Figure:
    """Returns a figure on the coverage of prediction intervals for one pipeline."""
    note = 'nothing could be predicted'
    if cases:
        settings = {case.key: case.repeats for case in cases}
        errors = [case.error_pct for case in cases if case.repeats]
        note = f'{sum(settings.values())} of {len(settings)} settings repeat'
        note += f', median half width {median_width_pct(cases):.0f} %'
        if errors:
            note += f', error {quantile(errors, 0.5):.1f} %, 90th percentile '
            note += f'{quantile(errors, 0.9):.1f} %'
    figure = f'pipeline {name}: intervals that hold the truth'
    return at_least(figure, covered_pct(cases), ONE_COVERAGE_LIMIT, '%', note)


def choose_pipelines(
    is_quick: bool, only: str | None
) -> dict[str, Sequence[Pipeline | PlantedByOthers]]:
    """Returns the pipelines to train, grouped by origin."""
    chosen: dict[str, Sequence[Pipeline | PlantedByOthers]] = {
        'seen': SEEN,
        'unseen': draw_unseen(),
        'MMDetection': MMDET,
        'others': OTHERS,
    }
    if is_quick:
        chosen = {origin: some[:1] for origin, some in chosen.items()}
        chosen['seen'] = [SEEN[0], SEEN[4]]
    return {origin: some for origin, some in chosen.items() if only in (None, origin)}


def measure_all(is_quick: bool, only: str | None) -> Iterator[dict[str, Any]]:
    """Trains the chosen pipelines with the loader settings for their origin."""
    for origin, pipelines in choose_pipelines(is_quick, only).items():
        grid, seconds, repeats = GRID, SECONDS, 1
        if origin == 'others':
            grid, seconds, repeats = OTHERS_GRID, OTHERS_SECONDS, OTHERS_REPEATS
        if is_quick:
            grid, seconds = QUICK_GRID, QUICK_SECONDS
        attempts = 1 if is_quick else ATTEMPTS
        yield from measure(pipelines, grid, seconds, attempts, repeats)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark: trains or reads trainings, then judges predictions."""
    parser = argparse.ArgumentParser()
    parser.add_argument('--only', choices=ORIGINS, help='this part of the pipelines')
    benchmark = Benchmark(
        'predict', __doc__ or '', argv, parser=parser, keeps_trials=True
    )
    only: str | None = benchmark.options.only
    if only and benchmark.options.output:
        parser.error('the table of one part is not kept: leave --output out')
    warnings.filterwarnings('ignore')
    measured = measure_all(benchmark.is_quick, only)
    lines = benchmark.read_trials(measured, part=only)
    trials = lines = [line for line in lines if only in (None, line['origin'])]
    if not benchmark.is_quick:
        trials = [line for line in lines if line['other_load_pct'] <= BUSY_LIMIT_PCT]
    benchmark.shares_pct = [trial['other_load_pct'] for trial in trials]
    cases = judge_trials(trials)
    parts = {
        'all planted': ('seen', 'unseen'),
        'seen': ('seen',),
        'unseen': ('unseen',),
        'MMDetection': ('MMDetection',),
    }
    if only:
        del parts['all planted']
    for name, origins in parts.items():
        if some_cases := [case for case in cases if case.origin in origins]:
            benchmark.add(*judge_cases(name, some_cases))
    planted = [line['pipeline'] for line in lines if line['origin'] == 'others']
    if names := list(dict.fromkeys(planted)):
        theirs = [case for case in cases if case.origin == 'others']
        benchmark.add(*judge_others(names, theirs))
    benchmark.add(
        Figure('trainings', len(trials), note=f'{len(lines) - len(trials)} left out')
    )
    known = [case for case in cases if case.origin != 'others']
    for name in dict.fromkeys(case.pipeline for case in known):
        same = [case for case in known if case.pipeline == name]
        errors = [case.error_pct for case in same]
        note = f'90th percentile {quantile(errors, 0.9):.1f} %, covered '
        note += f'{covered_pct(same):.0f} %'
        figure = f'pipeline {name}: error, median'
        benchmark.add(Figure(figure, quantile(errors, 0.5), '%', note=note))
    return benchmark.finish()


if __name__ == '__main__':
    sys.exit(main())
