"""Benchmark: host time of train steps, and equality of results, with ``optimize``.

    python -m benchmarks.host [--quick] [--output]

*Equality*: models of MMDetection, built from their own configs, train 2 epochs of 3
iterations at 96 pixels, plain and with all optimisations on. Weights, optimizer state,
averages, scalars: the checkpoints must hold the same bits, in runs that are resumed
from either, too. Where all at once differ, the optimisations are tried one by one.

*CPU time*: of the thread that trains, in turns, as ratios. A step and an average are
measured with the number of tensors that each model has, cut to one element: that is
what the host does for a card. Beside it, for information, with the tensors as they
are, whose arithmetic is the CPU's here and the card's elsewhere. ``foreach`` is forced,
which a card has by default. About 25 minutes.
"""

from __future__ import annotations

import copy
import gc
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import (
    ExitStack,
    closing,
    contextmanager,
    redirect_stderr,
    redirect_stdout,
)
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import torch
from mmengine.config import Config, ConfigDict
from mmengine.logging import HistoryBuffer, MessageHub
from mmengine.optim import OptimWrapper, build_optim_wrapper
from mmengine.registry import MODELS, OPTIM_WRAPPERS, init_default_scope
from mmengine.runner import Runner
from torch.utils.data import DataLoader, Dataset

from benchmarks.equal import is_equal
from benchmarks.harness import (
    Benchmark,
    Figure,
    at_least,
    at_most,
    end_workers,
    exactly,
    find_mmdet,
    say,
)
from mmgpu_hooks.config.hook_arguments import OPTIMIZATIONS
from mmgpu_hooks.experiment.demo_dataset import CATEGORIES, write_demo_dataset
from mmgpu_hooks.optimize.ema import ListedAverage
from mmgpu_hooks.optimize.history import GrowingHistories
from mmgpu_hooks.optimize.param_groups import MergedGroups
from mmgpu_hooks.optimize.small_tensors import SmallTensors

THIRD, HALF = 1 / 3, 0.5

CONFIGS = {
    'RTMDet-tiny': 'rtmdet/rtmdet_tiny_8xb32-300e_coco.py',
    'YOLOX-tiny': 'yolox/yolox_tiny_8xb8-300e_coco.py',
    'DINO': 'dino/dino-4scale_r50_8xb2-12e_coco.py',
    'Swin Mask R-CNN': 'swin/mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py',
    'Mask R-CNN': 'mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py',
}
TIMED = ('RTMDet-tiny', 'YOLOX-tiny', 'DINO', 'Swin Mask R-CNN')
"""Names of the models with several parameter groups, whose train steps are timed."""
QUICK = ('RTMDet-tiny',)

BY_TENSOR = dict(norm_decay_mult=0.0, bias_decay_mult=0.0, bypass_duplicate=True)
"""Config settings that give each parameter an optimizer group of its own."""
LAYER_DECAY = {
    f'backbone.stages.{stage}': dict(lr_mult=0.7 ** (4 - stage)) for stage in range(4)
}

CASES: dict[str, dict[str, Any]] = {
    'AdamW, clip_grad': dict(
        optimizer=dict(type='AdamW', lr=1e-4, weight_decay=0.05),
        clip_grad=dict(max_norm=0.1, norm_type=2),
    ),
    'SGD, accumulative_counts': dict(
        optimizer=dict(type='SGD', lr=0.01, momentum=0.9, weight_decay=1e-4),
        accumulative_counts=2,
    ),
    'Adam, foreach, bfloat16': dict(
        optimizer=dict(type='Adam', lr=1e-4, weight_decay=1e-4, foreach=True),
        is_autocast=True,
    ),
}
SCHEDULERS = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=4),
    dict(type='MultiStepLR', by_epoch=True, milestones=[1], gamma=0.1),
]
EPOCHS, IMAGES, BATCH = 2, 6, 2


@OPTIM_WRAPPERS.register_module()
class Autocast(OptimWrapper):
    """Optimizer wrapper with bfloat16 autocast on the CPU."""

    def optim_context(self, model: Any) -> Any:
        if getattr(model, 'with_rpn', False):
            return autocast_features(model)
        return torch.autocast('cpu', dtype=torch.bfloat16)


@contextmanager
def autocast_features(model: Any) -> Iterator[None]:
    """Context in which backbone and neck of a two-stage detector compute in bfloat16.

    MMCV's operators on boxes know no bfloat16 on a CPU.
    """
    extract = model.extract_feat

    def extract_in_bfloat16(inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.autocast('cpu', dtype=torch.bfloat16):
            return tuple(level.float() for level in extract(inputs))

    model.extract_feat = extract_in_bfloat16
    try:
        yield
    finally:
        del model.extract_feat


def write_images(root: Path) -> None:
    """Writes the demo's images and annotations, with a rectangular mask per box."""
    dataset = write_demo_dataset(root, images=IMAGES, width=128, height=96)
    listed = json.loads(dataset.annotation_file.read_text())
    for annotation in listed['annotations']:
        left, top, width, height = annotation['bbox']
        right, bottom = left + width, top + height
        corners = [left, top, right, top, right, bottom, left, bottom]
        annotation['segmentation'] = [corners]
    (root / 'masks.json').write_text(json.dumps(listed))


def drop_weights(config: Any) -> None:
    """Removes pretrained weights from a config, so that nothing is downloaded."""
    if isinstance(config, dict):
        init = config.get('init_cfg')
        if isinstance(init, dict) and init.get('type') == 'Pretrained':
            config['init_cfg'] = None
        for value in config.values():
            drop_weights(value)
    elif isinstance(config, (list, tuple)):
        for value in config:
            drop_weights(value)


def read_config(name: str) -> Any:
    """Returns the config of a model with random instead of pretrained weights."""
    config = Config.fromfile(find_mmdet() / 'configs' / CONFIGS[name])
    drop_weights(config._cfg_dict)
    config.model.data_preprocessor.batch_augments = None
    return config


def make_config(name: str, images: Path, work_dir: Path, case: str) -> Any:
    """Returns a config that trains a model on a few small images."""
    config = read_config(name)
    if 'num_queries' in config.model:  # more than images of 96 pixels have places
        config.model.num_queries = 100
    has_masks = 'Mask' in name
    pipeline = [
        dict(type='LoadImageFromFile'),
        dict(type='LoadAnnotations', with_bbox=True, with_mask=has_masks),
        dict(type='Resize', scale=(96, 96), keep_ratio=False),
        dict(type='RandomFlip', prob=0.5),
        dict(type='PackDetInputs'),
    ]
    dataset = dict(
        type='CocoDataset',
        data_root=str(images),
        ann_file='masks.json',
        data_prefix=dict(img='images/'),
        metainfo=dict(classes=CATEGORIES),
        pipeline=pipeline,
    )
    wrapper = copy.deepcopy(CASES[case])
    kind = 'Autocast' if wrapper.pop('is_autocast', False) else 'OptimWrapper'
    paramwise: dict[str, Any] = dict(BY_TENSOR)
    if 'Swin' in name:
        paramwise['custom_keys'] = LAYER_DECAY
    average = dict(type='EMAHook', momentum=0.002, update_buffers='SGD' in case)
    average['ema_type'] = (
        'ExpMomentumEMA' if 'Adam' in case else ('ExponentialMovingAverage')
    )
    return Config(
        dict(
            default_scope='mmdet',
            model=config.model,
            work_dir=str(work_dir),
            train_dataloader=dict(
                dataset=dataset,
                sampler=dict(type='DefaultSampler', shuffle=True),
                batch_size=BATCH,
                num_workers=1,
            ),
            train_cfg=dict(by_epoch=True, max_epochs=EPOCHS),
            optim_wrapper=dict(type=kind, paramwise_cfg=paramwise, **wrapper),
            param_scheduler=SCHEDULERS,
            default_hooks=dict(
                logger=dict(type='LoggerHook', interval=1),
                checkpoint=dict(type='CheckpointHook', interval=1),
            ),
            custom_hooks=[average],
            randomness=dict(seed=11, deterministic=True),
            experiment_name=f'host_{uuid.uuid4().hex}',
        )
    )


def train(
    config: Any, names: Sequence[str] | None, resumed: Path | None = None, **more: Any
) -> Path:
    """Trains a config and returns the path of its last checkpoint.

    Args:
        config: As :func:`make_config` makes it; it is not changed.
        names: Of optimisations; ``None`` trains without our hook.
        resumed: A checkpoint to go on from.
    """
    config = copy.deepcopy(config)
    config.experiment_name = f'host_{uuid.uuid4().hex}'
    config.work_dir = f'{config.work_dir}/{config.experiment_name}'
    config.train_cfg.update(more)
    if resumed is not None:
        config.update(load_from=str(resumed), resume=True)
    if names is not None:
        config.default_hooks.gpu_efficiency = dict(
            type='mmgpu_hooks.GPUEfficiencyHook',
            optimize=list(names),
            summary=False,
            write_config=False,
        )
    runner = Runner.from_cfg(config)
    try:
        runner.train()
    finally:
        end_workers(getattr(runner.train_dataloader, '_iterator', None))
    if names is not None:
        expect_all_on(Path(runner.log_dir), names)
    return Path(config.work_dir) / f'epoch_{runner.max_epochs}.pth'


def expect_all_on(folder: Path, names: Sequence[str]) -> None:
    """Raises an error if a requested optimisation was not active in a training.

    Raises:
        RuntimeError: If one of them was not used.
    """
    (log,) = folder.glob('*.log')
    text = log.read_text()
    off = [name for name in names if f'optimize={name} is on' not in text]
    if off or 'taken back' in text:
        raise RuntimeError(f'{", ".join(off) or "one"} was not used')


def load(path: Path) -> Any:
    """Loads a checkpoint without entries that differ even between equal trainings."""
    saved = torch.load(path, weights_only=False)
    del saved['meta']
    scalars = saved['message_hub']['log_scalars']
    for name in [name for name in scalars if 'time' in name]:
        del scalars[name]
    for name in ('last_ckpt', 'cfg', 'eta', 'experiment_name'):
        saved['message_hub']['runtime_info'].pop(name, None)
    return saved


def differ(one: Path, other: Path) -> list[str]:
    """Returns the names of the entries in which two checkpoints differ."""
    saved, twin = load(one), load(other)
    return [name for name in saved if not is_equal(saved[name], twin.get(name))]


def compare(name: str, images: Path, case: str, folder: Path) -> list[str]:
    """Trains with and without all optimisations, and returns the differing entries."""
    config = make_config(name, images, folder, case)
    plain, ours = train(config, None), train(config, OPTIMIZATIONS)
    found = differ(plain, ours)
    if found:
        return [
            f'{one}: {part}'
            for one in OPTIMIZATIONS
            for part in differ(plain, train(config, [one]))
        ] or [f'only together: {part}' for part in found]
    if case == next(iter(CASES)):
        # a resumed run has other random numbers than one that was not interrupted
        expected = train(config, None, plain.with_name('epoch_1.pth'))
        for first, second in ((plain, OPTIMIZATIONS), (ours, None)):
            resumed = train(config, second, first.with_name('epoch_1.pth'))
            found += [f'resumed: {part}' for part in differ(expected, resumed)]
    return found


def compare_apart(name: str, images: Path, case: str, answers: Any) -> None:
    """Compares trainings with and without optimisations; puts the result on a queue."""
    os.environ['TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD'] = '1'
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, 'console.log')
        try:
            with log.open('w') as file, redirect_stdout(file), redirect_stderr(file):
                found = compare(name, images, case, Path(folder))
        except Exception as error:  # noqa: BLE001, it is the answer
            say(log.read_text()[-2000:])
            traceback.print_exc()
            found = [f'{type(error).__name__}: {error}'[:200]]
        answers.put(found)


def judge_equality(is_quick: bool) -> Iterator[Figure]:
    """Returns figures on the number of differing checkpoint entries, by model."""
    context = get_context('spawn')
    images = Path(tempfile.mkdtemp())
    write_images(images)
    try:
        for name in QUICK if is_quick else CONFIGS:
            found = []
            cases = list(CASES)[: 1 if is_quick else None]
            for case in cases:
                say(f'{name}, {case}')
                answers = context.Queue()
                process = context.Process(
                    target=compare_apart, args=(name, images, case, answers)
                )
                process.start()
                found += [f'{case}: {part}' for part in answers.get(timeout=1200)]
                process.join()
            yield exactly(
                f'{name}: parts of checkpoints that differ',
                len(found),
                0,
                note='; '.join(found)[:300] or f'{"; ".join(cases)}; resumed',
            )
    finally:
        shutil.rmtree(images)


def take_turns(
    arms: Sequence[Callable[[], None]], rounds: int, calls: int
) -> list[list[float]]:
    """Runs functions in turns; returns CPU seconds per call of each one, by round."""
    seconds: list[list[float]] = [[] for _ in arms]
    for arm in arms:
        arm()
        arm()
    for turn in range(rounds):
        for number in range(len(arms)):
            place = (turn + number) % len(arms)
            began = time.thread_time()
            for _ in range(calls):
                arms[place]()
            seconds[place].append((time.thread_time() - began) / calls)
    return seconds


@dataclass(frozen=True)
class TimedRatio:
    """Ratio of the CPU times of two functions that were timed alternately."""

    ratio: float
    """Median ratio of the second function's CPU time to the first one's."""
    note: str
    """Text with the CPU times of both functions in milliseconds."""
    count: int = 1
    """Number of parameter groups or tensors that each timed call works on."""


def describe(seconds: Sequence[Sequence[float]], count: int = 1) -> TimedRatio:
    """Returns the CPU time ratio of two functions from their seconds in each round."""
    ratio = statistics.median(ours / plain for plain, ours in zip(*seconds))
    plain, ours = (1e3 * statistics.median(times) for times in seconds)
    return TimedRatio(ratio, f'{plain:.2f} to {ours:.2f} ms of CPU', count)


def fail(error: Exception) -> None:
    raise RuntimeError('an optimisation was taken back') from error


def build_models(name: str, is_cut: bool) -> list[Any]:
    """Returns two equal copies of a model, whose gradients are all ones."""
    init_default_scope('mmdet')
    model = MODELS.build(read_config(name).model)
    if is_cut:
        for tensor in [*model.parameters(), *model.buffers()]:
            tensor.data = tensor.data.flatten()[:1].clone()
    for param in model.parameters():
        param.grad = torch.ones_like(param)
    twin = copy.deepcopy(model)
    for param in twin.parameters():
        param.grad = torch.ones_like(param)
    return [model, twin]


def time_steps(models: Sequence[Any], foreach: bool | None, rounds: int) -> TimedRatio:
    """Measures the CPU time of optimizer steps with and without merged param groups."""
    wrappers = [
        build_optim_wrapper(
            model,
            # as in a config: groups are read as slowly
            ConfigDict(
                optimizer=dict(
                    type='AdamW', lr=1e-4, weight_decay=0.05, foreach=foreach
                ),
                paramwise_cfg=BY_TENSOR,
            ),
        )
        for model in models
    ]
    merged = MergedGroups(SimpleNamespace(cfg={}, optim_wrapper=wrappers[1]), fail)
    seconds = take_turns([w.optimizer.step for w in wrappers], rounds, 5)
    merged.close()
    return describe(seconds, len(wrappers[0].optimizer.param_groups))


def time_averages(models: Sequence[Any], rounds: int) -> TimedRatio:
    """Measures the CPU time of EMA updates with and without multi-tensor operations."""
    averages = [
        MODELS.build(dict(type='ExpMomentumEMA', model=model, update_buffers=True))
        for model in models
    ]
    listed = ListedAverage(averages[1], fail)
    arms = [
        partial(average.update_parameters, model)
        for average, model in zip(averages, models)
    ]
    seconds = take_turns(arms, rounds, 5)
    listed.close()
    return describe(seconds, len(averages[0].avg_parameters))


def judge_times(is_quick: bool) -> Iterator[Figure]:
    """Returns figures on the CPU time of optimizer steps and EMA updates, by model."""
    rounds = 5 if is_quick else 61
    for name in QUICK if is_quick else TIMED:
        say(f'times of {name}')
        models = build_models(name, is_cut=True)
        timed = time_steps(models, True, rounds)
        note = f'{timed.note}, {timed.count} groups, foreach forced'
        yield at_most(f'{name}: step, ratio', timed.ratio, THIRD, note=note)
        timed = time_averages(models, rounds)
        note = f'{timed.note}, {timed.count} tensors'
        yield at_most(f'{name}: average, ratio', timed.ratio, THIRD, note=note)
        timed = time_steps(models, None, rounds)
        note = f'{timed.note}, the default on a CPU'
        yield Figure(f'{name}: step, ratio without foreach', timed.ratio, note=note)
        models = build_models(name, is_cut=False)
        few = 3 if is_quick else 7
        timed = time_steps(models, True, few)
        shown = f'{name}: step, ratio with its arithmetic'
        yield Figure(shown, timed.ratio, note=timed.note)
        timed = time_averages(models, few)
        shown = f'{name}: average, ratio with its arithmetic'
        yield Figure(shown, timed.ratio, note=timed.note)
        del models
        gc.collect()


class PackedSamples(Dataset[Any]):
    """Data set of samples packed by MMDetection's ``PackDetInputs``.

    Args:
        pixels: Height and width of an image.
        has_masks: True if each box has a bitmap mask.
    """

    def __init__(self, pixels: int, has_masks: bool) -> None:
        from mmdet.datasets.transforms import PackDetInputs

        self.pixels, self.has_masks = pixels, has_masks
        self.pack = PackDetInputs()

    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, index: int) -> Any:
        from mmdet.structures.bbox import HorizontalBoxes
        from mmdet.structures.mask import BitmapMasks

        boxes, side = 1 + index % 9, self.pixels
        masks = {}
        if self.has_masks:
            bitmaps = np.zeros((boxes, side, side), np.uint8)
            masks['gt_masks'] = BitmapMasks(bitmaps, side, side)
        return self.pack(
            dict(
                img=np.zeros((side, side, 3), np.uint8),
                img_id=index,
                img_path=f'{index}.jpg',
                ori_shape=(side, side),
                img_shape=(side, side),
                gt_bboxes=HorizontalBoxes(torch.rand(boxes, 4)),
                gt_bboxes_labels=np.zeros(boxes, np.int64),
                gt_ignore_flags=np.zeros(boxes, bool),
                **masks,
            )
        )


def as_they_are(samples: list[Any]) -> list[Any]:
    """Collate function that returns the list of samples unchanged."""
    return samples


class LoaderArm:
    """DataLoader with one worker whose batches are timed in the training process.

    Args:
        has_masks: True for batches of 4 with masks of 640 pixels, else 8 of 320.
        is_small: True if small tensors are sent by value.
    """

    def __init__(self, has_masks: bool, is_small: bool) -> None:
        samples = PackedSamples(640 if has_masks else 320, has_masks)
        self.loader: Any = DataLoader(
            samples, 4 if has_masks else 8, num_workers=1, collate_fn=as_they_are
        )
        if is_small:
            SmallTensors(self.loader, fail)
        self.iterator = iter(self.loader)
        (worker,) = self.iterator._workers
        self.worker = psutil.Process(worker.pid)
        self.worker_s: list[float] = []
        self.most_files = 0

    def take(self, batches: int) -> float:
        """Receives some batches; returns this thread's CPU seconds per batch."""
        used = self.worker.cpu_times()
        spent = 0.0
        for _ in range(batches):
            began = time.thread_time()
            batch = next(self.iterator)
            spent += time.thread_time() - began
            files = len(os.listdir('/proc/self/fd'))
            self.most_files = max(self.most_files, files)
            del batch
        now = self.worker.cpu_times()
        cpu_s = now.user + now.system - used.user - used.system
        self.worker_s.append(cpu_s / batches)
        return spent / batches

    def close(self) -> None:
        """Ends the worker and closes the files of its batches."""
        end_workers(self.iterator)
        del self.iterator
        gc.collect()


def judge_batches(is_quick: bool, has_masks: bool) -> Iterator[Figure]:
    """Returns figures on the CPU time of receiving a batch from a worker process."""
    batch = 'batch of 4 with masks' if has_masks else 'batch of 8'
    say(batch)
    rounds, batches = (4, 20) if is_quick else (20, 50)
    files = []
    for is_small in (False, True):
        # one after the other: open files are the process's
        with closing(LoaderArm(has_masks, is_small)) as arm:
            arm.take(batches)
            files.append(arm.most_files)
    with ExitStack() as opened:
        arms = [
            opened.enter_context(closing(LoaderArm(has_masks, is_small)))
            for is_small in (False, True)
        ]
        seconds: list[list[float]] = [[], []]
        for turn in range(rounds + 1):
            for number in (turn % 2, 1 - turn % 2):
                seconds[number].append(arms[number].take(batches))
    seconds = [times[1:] for times in seconds]
    timed = describe(seconds)
    shown = f'{batch} in the training process, ratio'
    yield at_most(shown, timed.ratio, HALF, note=timed.note)
    timed = describe([arm.worker_s[1:] for arm in arms])
    yield Figure(f'{batch} in the worker, ratio', timed.ratio, note=timed.note)
    plain, ours = files
    shown, note = (
        f'{batch}: open files of the training process spared',
        f'{plain} to {ours}',
    )
    if has_masks:  # each is a file now
        yield Figure(shown, plain - ours, note=note)
    else:
        yield at_least(shown, plain - ours, 16, note=note)


def judge_history(is_quick: bool) -> Iterator[Figure]:
    """Returns figures on CPU time to log 13 scalars with 300,000 past values each."""
    say('history')
    keys, values = [f'train/scalar_{number}' for number in range(13)], 300_000
    hubs = [MessageHub(name) for name in ('host_plain', 'host_ours')]
    for hub in hubs:
        for key in keys:
            history = np.linspace(0, 1, values), np.ones(values, int)
            hub.log_scalars[key] = HistoryBuffer(*history)
            hub._resumed_keys[key] = True

    def add(hub: Any) -> None:
        for key in keys:
            hub.update_scalar(key, 0.5)

    growing = GrowingHistories(SimpleNamespace(message_hub=hubs[1]), fail)
    arms = [partial(add, hub) for hub in hubs]
    seconds = take_turns(arms, 5 if is_quick else 21, 10)
    growing.close()
    timed, shown = describe(seconds), '13 scalars after 300,000 iterations, ratio'
    yield at_most(shown, timed.ratio, 0.1, note=timed.note)
    saved = [hub.state_dict()['log_scalars'] for hub in hubs]
    count = sum(not is_equal(saved[0][key], saved[1][key]) for key in keys)
    yield exactly('scalars that differ', count, 0)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark: compares results and host time, and prints the table."""
    benchmark = Benchmark('host', __doc__ or '', argv)
    torch.set_num_threads(1)
    benchmark.add(*judge_history(benchmark.is_quick))
    for has_masks in (False, True):
        benchmark.add(*judge_batches(benchmark.is_quick, has_masks))
    benchmark.add(*judge_times(benchmark.is_quick))
    benchmark.add(*judge_equality(benchmark.is_quick))
    return benchmark.finish()


if __name__ == '__main__':
    sys.exit(main())
