"""Trains toy models in milliseconds with MMEngine's own Runner and loops."""

from __future__ import annotations

import inspect
import json
import os
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable, ClassVar

import torch
from mmengine.dataset import pseudo_collate
from mmengine.evaluator import BaseMetric
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.utils.data import Dataset

from mmgpu_hooks.hooks.scalars import LineFigures
from mmgpu_hooks.schema.recorded import IntervalRecord
from mmgpu_hooks.schema.run import RunEvidence, read_evidence

HOOK = {'type': 'mmgpu_hooks.GPUEfficiencyHook'}
LOCAL = 'LocalVisBackend'


class ToyDataset(Dataset[dict]):
    """Data set of images that depend only on their index.

    Args:
        length: Images.
        item_s: Seconds that each takes to load.
    """

    metainfo: ClassVar[dict[str, Any]] = {}

    def __init__(self, length: int, item_s: float = 0.0) -> None:
        self.length = length
        self.item_s = item_s

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        time.sleep(self.item_s)
        generator = torch.Generator().manual_seed(index)
        image = torch.randn(3, 8, 8, generator=generator)
        return {'inputs': image, 'data_samples': torch.tensor(float(index))}


class GrowingDataset(ToyDataset):
    """Data set of images, each two rows higher than the one before."""

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        item = super().__getitem__(index)
        return {**item, 'inputs': torch.zeros(3, 8 + 2 * index, 8)}


def collate_branches(items: list[Any]) -> dict[str, Any]:
    """Collate function that returns a batch as in semi-supervised training."""
    return {
        'inputs': {'branch': [item['inputs'] for item in items]},
        'data_samples': [item['data_samples'] for item in items],
    }


class ToyModel(BaseModel):
    """Model of one convolution.

    Args:
        step_s: Seconds that a training step sleeps.
    """

    def __init__(self, step_s: float = 0.0) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3)
        # made before the Runner seeds anything
        for weights in self.parameters():
            weights.data.uniform_(generator=torch.Generator().manual_seed(1))
        self.step_s = step_s

    def forward(
        self, inputs: Any, data_samples: Any = None, mode: str = 'tensor'
    ) -> Any:
        branch = inputs['branch'] if isinstance(inputs, dict) else inputs
        features = self.convolution(torch.stack(branch))
        if mode != 'loss':
            return [features]
        time.sleep(self.step_s)
        target = torch.stack(data_samples).view(-1, 1, 1, 1) / 100
        return {'loss': (features - target).pow(2).mean()}


class ManyTensorsModel(ToyModel):
    """Toy model with many small tensors, each of which the step uses.

    Args:
        step_s: Seconds that a training step sleeps.
        tensors: How many.
    """

    def __init__(self, step_s: float = 0.0, tensors: int = 200) -> None:
        super().__init__(step_s)
        self.scales = nn.ParameterList(
            nn.Parameter(torch.full((4,), number / tensors))
            for number in range(tensors)
        )

    def forward(
        self, inputs: Any, data_samples: Any = None, mode: str = 'tensor'
    ) -> Any:
        found = super().forward(inputs, data_samples, mode)
        if mode == 'loss':
            # one call for all: the rest of a step is short
            found['loss_scales'] = torch.cat(list(self.scales)).pow(2).mean()
        return found


class ToyMetric(BaseMetric):
    """Metric that returns a score of 1 after a given time."""

    def __init__(self, evaluation_s: float = 0.0) -> None:
        super().__init__()
        self.evaluation_s = evaluation_s

    def process(self, data_batch: Any, data_samples: Sequence[Any]) -> None:
        self.results.append(1.0)

    def compute_metrics(self, results: list[Any]) -> dict[str, float]:
        time.sleep(self.evaluation_s)
        return {'score': 1.0}


@HOOKS.register_module(name='training.toy.LossTape')
class LossTape(Hook):
    """Hook that records the exact loss of each iteration.

    Args:
        path: JSON file to leave them in when training ends.
    """

    priority = 'LOWEST'

    def __init__(self, path: str | None = None) -> None:
        self.path = path
        self.losses: list[str] = []

    def after_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        self.losses.append(outputs['loss'].item().hex())

    def after_train(self, runner: Any) -> None:
        if self.path is not None:
            Path(self.path).write_text(json.dumps(self.losses))


class AfterIteration(Hook):
    """Hook that calls a function with the Runner after each iteration.

    Args:
        action: The function.
        priority: Of the hook.
    """

    def __init__(self, action: Callable[[Any], Any], priority: str = 'NORMAL') -> None:
        self.action = action
        self.priority = priority

    def after_train_iter(self, runner: Any, *_: Any, **__: Any) -> None:
        self.action(runner)


_COLLATING: dict[Any, str] = {pseudo_collate: 'pseudo_collate'}


def build_runner(
    work_dir: Path,
    *,
    loop: str = 'epoch',
    iterations: int = 12,
    epochs: int = 1,
    batch_size: int = 2,
    length: int | None = None,
    dataset: Any = None,
    num_workers: int = 0,
    persistent_workers: bool = False,
    item_s: float = 0.0,
    step_s: float = 0.0,
    evaluation_s: float | None = None,
    val_interval: int = 1,
    log_interval: int = 4,
    ignore_last: bool = True,
    hook: dict[str, Any] | None = HOOK,
    custom_hooks: Sequence[Any] = (),
    checkpoint: dict[str, Any] | None = None,
    optim_wrapper: dict[str, Any] | None = None,
    collate_fn: Callable[..., Any] = pseudo_collate,
    kind: type[Any] = Runner,
    **more: Any,
) -> Any:
    """Returns a Runner that trains a toy model.

    Args:
        work_dir: Folder of the run.
        loop: ``epoch`` or ``iter``.
        iterations: Iterations of one epoch, or of the whole iteration-based run.
        length: Images in the data set; default: one epoch of ``iterations``.
        dataset: In the place of the toy's.
        evaluation_s: Seconds that the metric takes; ``None`` is no validation.
        hook: Ours; ``None`` leaves it out.
        checkpoint: Arguments of MMEngine's CheckpointHook; ``None`` saves nothing.
        kind: ``Runner`` or ``FlexibleRunner``.
        more: Further arguments of it.
    """
    default_hooks: dict[str, Any] = {
        'logger': {
            'type': 'LoggerHook',
            'interval': log_interval,
            'ignore_last': ignore_last,
        },
        'checkpoint': {'type': 'CheckpointHook', **(checkpoint or {'interval': -1})},
    }
    if hook is not None:
        default_hooks['gpu_efficiency'] = hook
    if evaluation_s is not None:
        more = {**validation(evaluation_s), **more}
    by_epoch = loop == 'epoch'
    limits = {'max_epochs': epochs} if by_epoch else {'max_iters': iterations}
    return kind(
        model=ToyModel(step_s),
        work_dir=str(work_dir),
        train_dataloader={
            'dataset': dataset or ToyDataset(length or iterations * batch_size, item_s),
            'sampler': {'type': 'DefaultSampler', 'shuffle': True},
            'batch_size': batch_size,
            'num_workers': num_workers,
            'persistent_workers': persistent_workers,
            # MMEngine 0.8 takes no function for its own one
            'collate_fn': {'type': _COLLATING.get(collate_fn, collate_fn)},
        },
        train_cfg={'by_epoch': by_epoch, 'val_interval': val_interval, **limits},
        optim_wrapper=optim_wrapper or {'optimizer': {'type': 'SGD', 'lr': 0.01}},
        default_hooks=default_hooks,
        custom_hooks=list(custom_hooks),
        log_processor={'by_epoch': by_epoch},
        visualizer={'type': 'Visualizer', 'vis_backends': [{'type': LOCAL}]},
        randomness={'seed': 3},
        # MMEngine keeps loggers and message hubs by this name for ever
        experiment_name=f'toy_{uuid.uuid4().hex}',
        **more,
    )


def validation(evaluation_s: float) -> dict[str, Any]:
    """Returns Runner arguments for a validation whose metric takes a given time."""
    return {
        'val_dataloader': {
            'dataset': ToyDataset(2),
            'sampler': {'type': 'DefaultSampler', 'shuffle': False},
            'batch_size': 2,
            'num_workers': 0,
        },
        'val_cfg': {},
        'val_evaluator': {'type': ToyMetric, 'evaluation_s': evaluation_s},
    }


def train(runner: Runner) -> Runner:
    """Trains, and then ends the loaders' worker processes."""
    try:
        runner.train()
    finally:
        loop = runner.train_loop
        endless = getattr(loop, 'dataloader_iterator', None)
        for iterator in (
            getattr(endless, '_iterator', None),
            getattr(loop.dataloader, '_iterator', None),
        ):
            if hasattr(iterator, '_shutdown_workers'):
                iterator._shutdown_workers()
    return runner


def losses_of(runner: Runner) -> list[str]:
    """Returns the losses that a Runner's LossTape recorded."""
    return next(hook for hook in runner.hooks if isinstance(hook, LossTape)).losses


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Loads a complete checkpoint onto the CPU."""
    # torch 1.13 and later ask for it
    has_choice = 'weights_only' in inspect.signature(torch.load).parameters
    options = {'weights_only': False} if has_choice else {}
    checkpoint: dict[str, Any] = torch.load(path, map_location='cpu', **options)
    return checkpoint


def find_evidence(work_dir: Path, name: str = 'gpu_efficiency.jsonl') -> Path:
    """Returns the path of the only evidence file of a name in a work_dir."""
    (found,) = work_dir.glob(f'*/vis_data/{name}')
    return found


def evidence_of(work_dir: Path, name: str = 'gpu_efficiency.jsonl') -> RunEvidence:
    """Reads the only evidence file of a name in a work_dir."""
    return read_evidence(find_evidence(work_dir, name))


def log_of(runner: Runner) -> str:
    """Returns the text of the Runner's log file."""
    (path,) = Path(runner.log_dir).glob('*.log')
    return path.read_text()


def scalar_lines(work_dir: Path) -> list[dict[str, Any]]:
    """Returns the lines of a run's ``scalars.json`` as dicts."""
    (path,) = work_dir.glob('*/vis_data/scalars.json')
    return [json.loads(line) for line in path.read_text().splitlines()]


def summarize_scalars(record: IntervalRecord) -> dict[str, float]:
    """Returns the published scalars of one log interval."""
    line = LineFigures()
    line.add(record)
    return line.take()


def open_files() -> set[str]:
    """Returns the files that this process has open, except MMEngine's logs."""
    targets = set()
    for name in os.listdir('/proc/self/fd'):
        try:
            targets.add(os.readlink(f'/proc/self/fd/{name}'))
        except FileNotFoundError:  # the listing's own
            continue
    # MMEngine's log handler keeps its file open for ever
    return {target for target in targets if not target.endswith('.log')}
