"""Trainings whose every second is planted, and stamped by somebody else than the hook.

The stamps lie in the planted objects themselves: in a subclass of the DataLoader, of
the Runner, of the validation loop, in the model and in the hooks. None of them knows
of the time ledger.
"""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from mmengine.dataset import DefaultSampler, pseudo_collate
from mmengine.evaluator import BaseMetric
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.registry import LOOPS
from mmengine.runner import BaseLoop, FlexibleRunner, Runner, ValLoop
from torch import nn
from torch.utils.data import DataLoader, Dataset

ITEM_S, STEP_S, WORKER_START_S = 0.004, 0.03, 0.25
SAVE_S, VALIDATION_S, EPOCH_HOOK_S = 0.12, 0.2, 0.05
HOOK_S = {'PlantedBefore': 0.003, 'PlantedAfter': 0.006}


class Tape:
    """Seconds that the planted things took, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.began_s = 0.0
        """When the hook point that is on began."""

    @contextmanager
    def stamp(self, name: str) -> Iterator[None]:
        """Add the time inside the block to ``name``."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name].append(time.perf_counter() - begin)


TAPE = Tape()
"""Of the run that is on; one run at a time."""


class PlantedDataset(Dataset[dict]):
    """Images that take ``ITEM_S`` each."""

    metainfo: dict[str, Any] = {}  # noqa: RUF012  # MMEngine asks the instance for it

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        time.sleep(ITEM_S)
        return {'inputs': torch.ones(3, 8, 8) * index, 'data_samples': index}


def start_worker_slowly(worker_id: int) -> None:
    """What imports take in a worker that has many."""
    time.sleep(WORKER_START_S)


class _StampedIterator:
    def __init__(self, loader: StampedLoader, iterator: Iterator[Any]) -> None:
        self._loader = loader
        self._iterator = iterator

    def __iter__(self) -> _StampedIterator:
        return self

    def __next__(self) -> Any:
        begin = time.perf_counter()
        try:
            batch = next(self._iterator)
        except StopIteration:
            self._loader.ends.append(time.perf_counter() - begin)
            raise
        self._loader.waits.append(time.perf_counter() - begin)
        return batch


class StampedLoader(DataLoader[Any]):
    """A DataLoader that stamps what its user waits for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.waits: list[float] = []
        self.begins: list[int] = []
        """Index in ``waits`` of the first wait of each iterator."""
        self.creations: list[float] = []
        self.ends: list[float] = []

    def __iter__(self) -> Any:
        begin = time.perf_counter()
        iterator = super().__iter__()
        self.creations.append(time.perf_counter() - begin)
        self.begins.append(len(self.waits))
        return _StampedIterator(self, iterator)


class PlantedModel(BaseModel):
    """A step that sleeps."""

    step_s = STEP_S

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, inputs: Any, data_samples: Any = None, mode: str = '') -> Any:
        if mode == 'loss':
            time.sleep(self.step_s)
            return {'loss': self.weight.sum()}
        return [0.0]

    def train_step(self, data: Any, optim_wrapper: Any) -> Any:
        with TAPE.stamp('step'):
            return super().train_step(data, optim_wrapper)


class PlantedMetric(BaseMetric):
    """A metric that takes its time."""

    def process(self, data_batch: Any, data_samples: Any) -> None:
        self.results.append(1.0)

    def compute_metrics(self, results: list[Any]) -> dict[str, float]:
        time.sleep(VALIDATION_S)
        return {'score': 1.0}


class PlantedBefore(Hook):
    """Sleeps before each iteration."""

    def before_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None):
        with TAPE.stamp('PlantedBefore'):
            time.sleep(HOOK_S['PlantedBefore'])


class PlantedAfter(Hook):
    """Sleeps after each iteration and epoch, and makes saves slow."""

    priority = 'VERY_LOW'

    def after_train_iter(self, runner: Any, batch_idx: int, **rest: Any) -> None:
        with TAPE.stamp('PlantedAfter'):
            time.sleep(HOOK_S['PlantedAfter'])

    def after_train_epoch(self, runner: Any) -> None:
        with TAPE.stamp('PlantedAfter'):
            time.sleep(EPOCH_HOOK_S)

    def before_save_checkpoint(self, runner: Any, checkpoint: dict[str, Any]) -> None:
        time.sleep(SAVE_S)


class PlantedEdge:
    """First or last of a Runner's hooks: stamps how long all of a hook point take.

    Args:
        point: Name of a hook point of training.
        is_last: Which of the two it is.
    """

    def __init__(self, point: str, is_last: bool) -> None:
        setattr(self, point, self._end if is_last else self._begin)

    def _begin(self, runner: Any, **rest: Any) -> None:
        TAPE.began_s = time.perf_counter()

    def _end(self, runner: Any, **rest: Any) -> None:
        TAPE.seconds['hooks'].append(time.perf_counter() - TAPE.began_s)


class _Stamped:
    """Stamps of a runner's own methods."""

    def call_edges(self) -> None:
        """Stamp the hook points of training from end to end."""
        for when in ('before', 'after'):
            for what in ('train', 'train_epoch', 'train_iter'):
                point = f'{when}_{what}'
                self._hooks.insert(0, PlantedEdge(point, is_last=False))  # type: ignore[attr-defined]
                self._hooks.append(PlantedEdge(point, is_last=True))  # type: ignore[attr-defined]

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        with TAPE.stamp('checkpoint_save'):
            super().save_checkpoint(*args, **kwargs)  # type: ignore[misc]


class StampedRunner(_Stamped, Runner):
    """MMEngine's Runner, stamped."""


class StampedFlexibleRunner(_Stamped, FlexibleRunner):
    """MMEngine's FlexibleRunner, stamped."""


@LOOPS.register_module()
class StampedValLoop(ValLoop):
    """MMEngine's validation loop, stamped."""

    def run(self) -> Any:
        with TAPE.stamp('validation'):
            return super().run()


@LOOPS.register_module()
class CustomLoop(BaseLoop):
    """A loop that has no ``run_iter`` and knows neither epochs nor iterations' end."""

    def __init__(self, runner: Any, dataloader: Any, iterations: int) -> None:
        super().__init__(runner, dataloader)
        self.iterations = iterations
        self.iter = self.epoch = self._epoch = self._iter = 0
        self.max_iters, self.max_epochs = iterations, 1
        self.val_begin, self.val_interval = 0, 1
        self.stop_training = False

    def run(self) -> Any:
        runner = self.runner
        runner.call_hook('before_train')
        runner.call_hook('before_train_epoch')
        for index, batch in enumerate(self.dataloader):
            runner.call_hook('before_train_iter', batch_idx=index, data_batch=batch)
            outputs = runner.model.train_step(batch, optim_wrapper=runner.optim_wrapper)
            runner.call_hook(
                'after_train_iter', batch_idx=index, data_batch=batch, outputs=outputs
            )
            self.iter += 1
        runner.call_hook('after_train_epoch')
        if runner.val_loop is not None:
            runner.val_loop.run()
        runner.call_hook('after_train')
        return runner.model


def build_planted(
    work_dir: Path,
    *,
    loop: str = 'epoch',
    iterations: int = 40,
    epochs: int = 2,
    num_workers: int = 0,
    persistent_workers: bool = False,
    flexible: bool = False,
    save_interval: int = 15,
    resume_from: str | None = None,
) -> Any:
    """A Runner in which everything takes a planted time.

    Args:
        work_dir: Folder of the run.
        loop: ``epoch``, ``iter`` or ``custom``.
        iterations: Of the whole run.
        epochs: Epochs that they make.
        num_workers: Of the train loader.
        persistent_workers: Whether those live on.
        flexible: Whether to build a FlexibleRunner.
        save_interval: Iterations between saves; they are in the middle of epochs.
        resume_from: Checkpoint to resume from.
    """
    TAPE.seconds.clear()
    dataset = PlantedDataset(iterations // epochs)
    loader = StampedLoader(
        dataset,
        batch_size=1,
        sampler=DefaultSampler(dataset, shuffle=False),
        num_workers=num_workers,
        persistent_workers=persistent_workers,
        worker_init_fn=start_worker_slowly if num_workers else None,
        collate_fn=pseudo_collate,
    )
    train_cfg: dict[str, Any] = {
        'epoch': {'by_epoch': True, 'max_epochs': epochs, 'val_interval': 1},
        'iter': {'by_epoch': False, 'max_iters': iterations, 'val_interval': 17},
        'custom': {'type': 'CustomLoop', 'iterations': iterations // epochs},
    }[loop]
    model: Any = PlantedModel()
    build = StampedFlexibleRunner if flexible else StampedRunner
    runner = build(
        model=model,
        work_dir=str(work_dir),
        train_dataloader=loader,
        train_cfg=train_cfg,
        val_dataloader=DataLoader(
            PlantedDataset(2), batch_size=2, collate_fn=pseudo_collate
        ),
        val_cfg={'type': 'StampedValLoop'},
        val_evaluator={'type': PlantedMetric},
        optim_wrapper={'optimizer': {'type': 'SGD', 'lr': 0.01}},
        default_hooks={
            'logger': {'type': 'LoggerHook', 'interval': 10},
            'checkpoint': {
                'type': 'CheckpointHook',
                'by_epoch': False,
                'interval': save_interval,
            },
            'gpu_efficiency': {'type': 'mmgpu_hooks.GPUEfficiencyHook'},
        },
        custom_hooks=[PlantedBefore(), PlantedAfter()],
        log_processor={'by_epoch': loop == 'epoch'},
        visualizer={
            'type': 'Visualizer',
            'vis_backends': [{'type': 'LocalVisBackend'}],
        },
        resume=resume_from is not None,
        load_from=resume_from,
        log_level='ERROR',
        experiment_name=f'planted_{uuid.uuid4().hex}',
    )
    runner.call_edges()
    return runner


SHORT_STEP_S = 0.005
"""Shorter than usual, since many iterations are needed."""


class _PlantedNowAndThen(Hook):
    """Sleeps after each iteration that is its turn."""

    seconds = 0.0
    every = 1
    first = 0

    def after_train_iter(self, runner: Any, batch_idx: int, **rest: Any) -> None:
        if runner.iter % self.every == self.first:
            with TAPE.stamp(type(self).__name__):
                time.sleep(self.seconds)


class PlantedRare(_PlantedNowAndThen):
    """Say, draws an image now and then."""

    seconds, every, first = 0.06, 40, 33


class PlantedOften(_PlantedNowAndThen):
    """Takes long more often, and not so long."""

    seconds, every, first = 0.005, 7, 3


class PlantedBeside(_PlantedNowAndThen):
    """Is never long."""

    seconds = 0.0003


RARE_HOOKS = (PlantedRare, PlantedOften, PlantedBeside)


def plant_rare(runner: Any) -> None:
    """Register all of them with a runner, and make its steps short."""
    runner.model.step_s = SHORT_STEP_S
    for hook in RARE_HOOKS:
        runner.register_hook(hook())
