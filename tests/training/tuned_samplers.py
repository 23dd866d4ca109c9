"""Trainings whose loader is tuned, with each sampler of MMEngine and MMDetection.

As a program for torchrun, after the folder: writes for each rank and training the
samples in their order, with and without a change of workers.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
import torch.distributed
from mmengine.hooks import Hook
from mmengine.runner import loops

from fakes.tuning import ScriptedAdviser, judge, propose, settings
from mmgpu_hooks.hooks import possible_gain, tuner
from training.ranks import build_rank
from training.toy import HOOK, ToyDataset, build_runner, train

NONE, TWO = settings(0), settings(2)
TUNED = {**HOOK, 'tune': True, 'summary': False, 'write_config': False}
LENGTH = 120
"""Number of samples in each data set."""


class Labels(Hook):
    """Hook that keeps the label of each sample in the order of training."""

    def __init__(self) -> None:
        self.labels: list[float] = []

    def after_train_iter(
        self, runner: Any, *_: Any, data_batch: Any, **__: Any
    ) -> None:
        self.labels += [float(label) for label in data_batch['data_samples']]


class Part(ToyDataset):
    """Data set with what MMDetection's samplers ask."""

    metainfo: ClassVar[dict[str, Any]] = {'classes': ('a', 'b', 'c')}

    def get_data_info(self, index: int) -> dict[str, Any]:
        return {'width': 100 + 37 * (index % 5), 'height': 200}

    def get_cat_ids(self, index: int) -> list[int]:
        return [index % 3]


class Joined(Part):
    """Two data sets in one, as MMDetection's ConcatDataset."""

    def __init__(self) -> None:
        super().__init__(LENGTH)
        self.datasets = [Part(LENGTH // 3), Part(2 * LENGTH // 3)]
        self.cumulative_sizes = [LENGTH // 3, LENGTH]

    def get_dataset_source(self, index: int) -> int:
        return int(index >= LENGTH // 3)


def make_part() -> Part:
    """Returns a data set with aspect ratios and categories."""
    return Part(LENGTH)


def make_videos() -> Any:
    """Returns a data set of 24 videos of five frames each."""
    from mmdet.datasets import BaseVideoDataset

    class Videos(BaseVideoDataset):
        def filter_data(self) -> list[dict[str, Any]]:
            return self.data_list

        def load_data_list(self) -> list[dict[str, Any]]:
            return [
                {
                    'video_id': number,
                    'video_length': 5,
                    'images': [{'width': 100 + 37 * (number % 5), 'height': 200}] * 5,
                }
                for number in range(LENGTH // 5)
            ]

        def __getitem__(self, index: tuple[int, int]) -> Any:
            video, frame = index
            return ToyDataset(LENGTH)[5 * video + frame]

    return Videos(metainfo={'classes': ('any',)})


class Case(NamedTuple):
    """Sampler, or batch sampler, with a data set and the loops that can use it."""

    loader: dict[str, Any]
    make_dataset: Any = make_part
    is_infinite: bool = False
    """True if its passes have no end, so that no epoch has one."""
    is_uneven: bool = False
    """True if ranks get different numbers of batches, and so wait for each other."""


TRACKED = {'type': 'mmdet.TrackImgSampler'}
TWO_SETS = {'type': 'mmdet.MultiDataSampler', 'dataset_ratio': [1, 2]}
BY_RATIO = {'type': 'mmdet.MultiDataAspectRatioBatchSampler', 'num_datasets': 2}
SOURCES = {'batch_size': 4, 'source_ratio': [1, 3]}

CASES: dict[str, Case] = {
    'default': Case({}),
    'default, in order': Case(
        {'sampler': {'type': 'DefaultSampler', 'shuffle': False}}
    ),
    'infinite': Case({'sampler': {'type': 'InfiniteSampler'}}, is_infinite=True),
    'aspect ratio': Case({'batch_sampler': {'type': 'mmdet.AspectRatioBatchSampler'}}),
    'class aware': Case({'sampler': {'type': 'mmdet.ClassAwareSampler'}}),
    'several sources': Case(
        {'sampler': {'type': 'mmdet.MultiSourceSampler', **SOURCES}, 'batch_size': 4},
        Joined,
        is_infinite=True,
    ),
    'several sources by aspect ratio': Case(
        {
            'sampler': {'type': 'mmdet.GroupMultiSourceSampler', **SOURCES},
            'batch_size': 4,
        },
        Joined,
        is_infinite=True,
    ),
    'several data sets': Case({'sampler': TWO_SETS}, Joined),
    'several data sets by aspect ratio': Case(
        {
            'sampler': TWO_SETS,
            'batch_sampler': BY_RATIO,
            'batch_size': [2, 3],
        },
        Joined,
        is_uneven=True,
    ),
    'part of a data set': Case(
        {
            'sampler': {
                'type': 'mmdet.CustomSampleSizeSampler',
                'dataset_size': [20, -1],
            }
        },
        Joined,
    ),
    'frames': Case({'sampler': TRACKED}, make_videos),
    'frames by aspect ratio': Case(
        {
            'sampler': TRACKED,
            'batch_sampler': {'type': 'mmdet.TrackAspectRatioBatchSampler'},
        },
        make_videos,
    ),
}
"""All samplers that MMEngine and MMDetection 3 register, by what they do."""

PLACES = {
    'in the middle of an epoch': ('epoch', 0.0),
    "at an epoch's end": ('epoch', 1000.0),
    'in a loop by iterations': ('iter', 0.0),
}
"""Loop, and predicted seconds of a change: a long one waits for the epoch's end."""


def list_trainings() -> list[tuple[str, str]]:
    """Returns all pairs of a sampler and a place of the change that can train."""
    return [
        (name, place)
        for name, place in itertools.product(CASES, PLACES)
        if not (CASES[name].is_infinite and PLACES[place][0] == 'epoch')
    ]


def list_rank_trainings() -> list[tuple[str, str]]:
    """Returns the pairs for several ranks, which change between two iterations."""
    return [
        (name, place)
        for name, place in list_trainings()
        if PLACES[place] == ('iter', 0.0)
        or (PLACES[place] == ('epoch', 0.0) and not CASES[name].is_uneven)
    ]


def take_samples(
    work_dir: Path,
    name: str,
    place: str,
    hook: dict[str, Any] | None,
    build: Any = build_runner,
) -> list[float]:
    """Trains five passes; returns the labels of the samples in their order.

    Args:
        work_dir: Folder of the run.
        name: Of the sampler.
        place: Where the number of workers changes, if it does.
        hook: Ours; ``None`` leaves it out.
        build: Makes the Runner.
    """
    case, seen = CASES[name], Labels()
    runner = build(
        work_dir,
        loop=PLACES[place][0],
        # of the loop by iterations; an epoch is as long as its data set
        iterations=100,
        epochs=5,
        log_interval=4,
        dataset=case.make_dataset(),
        hook=hook,
        custom_hooks=[seen],
    )
    runner._train_dataloader.update(case.loader)
    train(runner)
    return seen.labels


def script(place: str) -> ScriptedAdviser:
    """Returns a tuning process that asks for two workers, and for none again."""
    cost_s = PLACES[place][1]
    answers = (
        propose(NONE, TWO, cost_s=cost_s),
        judge(TWO, TWO, 'gain'),
        propose(TWO, NONE, cost_s=cost_s),
        judge(NONE, NONE, 'gain'),
    )
    return ScriptedAdviser(answers)


def main(folder: Path) -> None:
    """Trains each sampler at each place, tuned and not, in folders named by number."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group('gloo')
    rank = torch.distributed.get_rank()
    loops.time.sleep = lambda seconds: None
    # quiet hosts and busy ones judge alike
    tuner.FIRST_S, tuner.SHORT_S = 0.0, 0.0
    tuner.FIRST_ASKED, tuner.ASK_AGAIN = 0, 1.0
    # whether it waits for data or not
    possible_gain.LEAST_WAIT = 0.0
    for number, (name, place) in enumerate(list_rank_trainings()):
        tuner.TuningAdviser = lambda *_, _place=place, **__: script(_place)  # type: ignore
        for hook, kind in ((TUNED, 'tuned'), (None, 'plain')):
            work_dir = folder / f'{number}_{kind}'
            work_dir.mkdir(exist_ok=True, parents=True)
            labels = take_samples(work_dir, name, place, hook, build_rank)
            (work_dir / f'labels_{rank}.json').write_text(json.dumps(labels))
    torch.distributed.destroy_process_group()


if __name__ == '__main__':
    main(Path(sys.argv[1]))
