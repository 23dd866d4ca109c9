"""Program that trains one trial: ``python -m mmgpu_hooks.experiment.trial_child``.

It trains the user's config, changed in memory, with MMEngine's own Runner. A line of
its events file says what each block of iterations took and how it ended; each line on
standard input asks for a block.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.dist import broadcast_object_list, is_main_process
from mmengine.hooks import CheckpointHook, Hook
from msgspec import structs

from mmgpu_hooks.config.hook_arguments import HOOK_TYPE, is_our_hook
from mmgpu_hooks.config.loading import bare_name, parse_flat
from mmgpu_hooks.config.settings import HOOK_KEY, complete_settings
from mmgpu_hooks.experiment.children import die_with_parent
from mmgpu_hooks.experiment.trial import (
    ENDLESS,
    EVENTS_NAME,
    render_event,
    shorten,
)
from mmgpu_hooks.measure.clock import monotonic_s
from mmgpu_hooks.measure.loader.settings import read_length
from mmgpu_hooks.schema.tried import (
    ModelBytes,
    TrialBlock,
    TrialEnd,
    TrialEvent,
    TrialSpec,
)

_VALIDATION = ('val_cfg', 'val_dataloader', 'val_evaluator')
_TEST = ('test_cfg', 'test_dataloader', 'test_evaluator')
_CONTENT_OF_SAVES = ('save_optimizer', 'save_param_scheduler')
"""Names of CheckpointHook's arguments on which a checkpoint's content depends."""
_NO_MEMORY = (
    'out of memory',
    'cannot allocate memory',
    'unable to allocate',
    '_status_alloc_failed',
    'unable to find a valid cudnn algorithm',
    'unable to find an engine to execute this computation',
    "can't allocate memory",
    'bus error',
    "no space left on device: '/dev/shm",
    'is killed by signal: killed',
)
"""Lower-case parts of error messages that mean a lack of memory."""


class TrialOver(SystemExit):
    """Exception that ends a trial's training loop in the middle of an epoch.

    A SystemExit, so that a training's own ``except Exception`` lets it through.
    """


def append_event(events: Path, event: TrialEvent) -> None:
    """Appends one report to a trial's events file."""
    with events.open('a') as file:
        file.write(render_event(event))


class TrialHook(Hook):
    """Hook that trains a trial in requested blocks of iterations, and reports each.

    An iteration is timed from the end of one to the end of the next; the time spent
    waiting for the next block is in none of them.

    Args:
        events: The file to report to.
        blocks: Iterations of each block; training ends when it does. Of several ranks
            the first one reads it, and tells the others.
        last_saves: Saves to make when the blocks have ended.
        save_gap: Iterations from each of them to the next.
    """

    # after every other hook: the last iteration is recorded whole
    priority = 'LOWEST'

    def __init__(
        self,
        events: Path,
        blocks: Iterator[int],
        last_saves: int = 0,
        save_gap: int = 0,
    ) -> None:
        self._events, self._blocks = events, blocks
        self._left = 1
        self._last_saves, self._save_gap = last_saves, save_gap
        self._until_save: int | None = None
        """Iterations to the next checkpoint save; ``None`` until all blocks ended."""
        self._last_s: float | None = None
        self._seconds: list[float] = []
        self._starts: list[int] = []
        self._is_start = False
        self._restarts = 0
        self.done = 0

    @property
    def is_saving(self) -> bool:
        """True after the trial's last block, while only checkpoint saves are timed."""
        return self._until_save is not None

    def before_train(self, runner: Any) -> None:
        self._left = self._next_block() or 1

    def before_train_epoch(self, runner: Any) -> None:
        self._is_start = True

    def before_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None
    ) -> None:
        # an iteration-based loop begins its loader again without an epoch
        endless = getattr(runner.train_loop, 'dataloader_iterator', None)
        restarts = getattr(endless, '_epoch', 0)
        if self._is_start or restarts != self._restarts:
            self._starts.append(len(self._seconds))
        self._is_start, self._restarts = False, restarts
        if self._until_save is not None:
            self._until_save -= 1
            # its interval decides whether the checkpoint hook saves after this one
            is_due = self._until_save <= 0
            _find_saver(runner).interval = 1 if is_due else ENDLESS

    def after_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        now_s = monotonic_s()
        self.done += 1
        # the start of the very first is unknown
        if self._until_save is not None:
            if self._until_save <= 0:
                self._last_saves -= 1
                self._until_save = self._save_gap
            if not self._last_saves:
                raise TrialOver
            return
        self._seconds.append(now_s - self._last_s if self._last_s is not None else 0.0)
        self._last_s = now_s
        self._left -= 1
        if self._left > 0:
            return
        sampler = runner.train_dataloader.batch_sampler
        images = getattr(sampler, 'batch_size', None)
        # MMEngine has read them for its log: no tensor is waited for
        history = runner.message_hub.log_scalars.get('train/loss')
        is_first = self.done == len(self._seconds)
        # MMEngine keeps the values first, how many each is the mean of second
        is_finite = history is None or bool(np.isfinite(history.data[0]).all())
        block = TrialBlock(
            seconds=self._seconds,
            starts=self._starts,
            batch_size=images if isinstance(images, int) else None,
            # this hook is called before the loop counts the iteration
            left=runner.max_iters - runner.iter - 1,
            epoch=read_length(runner.train_dataloader),
            is_loss_finite=is_finite,
            model_bytes=count_model_bytes(runner) if is_first else None,
        )
        if is_main_process():
            append_event(self._events, block)
        iterations = self._next_block()
        if iterations is None and self._last_saves:
            self._until_save = 1
            return
        if iterations is None:
            raise TrialOver
        self._left, self._seconds, self._starts = iterations, [], []
        self._last_s = monotonic_s()

    def _next_block(self) -> int | None:
        """Reads how many iterations to train in the next block, equal on all ranks."""
        said = [next(self._blocks, None) if is_main_process() else None]
        broadcast_object_list(said)
        return said[0]


def _find_saver(runner: Any) -> Any:
    return next(hook for hook in runner.hooks if isinstance(hook, CheckpointHook))


def count_model_bytes(runner: Any) -> ModelBytes:
    """Counts bytes of parameters, gradients and optimizer state of a Runner's model.

    MMEngine frees gradients after each step, so one is counted as its parameter.
    """
    model, optim = runner.model, runner.optim_wrapper
    parameters = list(model.parameters())
    wrappers = optim.values() if hasattr(optim, 'values') else [optim]
    states = [
        value
        for wrapper in wrappers
        for state in wrapper.optimizer.state.values()
        for value in state.values()
        if hasattr(value, 'nbytes')
    ]
    trainable = (parameter for parameter in parameters if parameter.requires_grad)
    return ModelBytes(
        parameters=_count_bytes((*parameters, *model.buffers())),
        gradients=_count_bytes(trainable),
        optimizer_state=_count_bytes(states),
    )


def _count_bytes(tensors: Iterable[Any]) -> int:
    return sum(int(tensor.nbytes) for tensor in tensors)


def run_child(spec: TrialSpec) -> None:
    """Trains a trial by its specification, and reports how the training ended."""
    events = Path(spec.folder, EVENTS_NAME)
    hook = TrialHook(events, map(int, sys.stdin), spec.last_saves, spec.save_gap)
    end = TrialEnd('completed')
    try:
        _train(spec, hook)
    except TrialOver:
        pass
    # a training may end in any way, and each of them is a result
    except BaseException as error:  # noqa: BLE001
        traceback.print_exc()
        end = classify_error(type(error).__name__, str(error))
    if hook.is_saving and end.error is not None:
        # everything else was measured before
        end = TrialEnd('completed', save_error=end.error)
    if is_main_process():
        append_event(events, structs.replace(end, iterations=hook.done))


def _train(spec: TrialSpec, hook: TrialHook) -> None:
    from mmengine.registry import RUNNERS
    from mmengine.runner import Runner

    # the layout of the config's copies is seconds of every start
    layout: Any = importlib.import_module('mmengine.config.config')
    if hasattr(layout, 'FormatCode'):
        layout.FormatCode = lambda text, **_: (text, True)
    config = read_trial_config(spec)
    runner: Any = (
        RUNNERS.build(config) if 'runner_type' in config else Runner.from_cfg(config)
    )
    if spec.profiled:
        # late: no other trial needs it
        from mmgpu_hooks.experiment.trial_profile import ProfileHook

        runner.register_hook(ProfileHook(Path(spec.folder), spec.profiled))
    runner.register_hook(hook)
    runner.train()


def read_trial_config(spec: TrialSpec) -> Any:
    """Loads a trial's config, and changes settings, hooks and work_dir for the trial.

    What trains stays: model, data, schedule and every hook that belongs to them. Out
    go validation, logging to anywhere but the trial's folder, resuming and, unless
    asked for, saves. Saves at an interval of the trial's own go to its folder, with
    what the config would put into them.

    Args:
        spec: Which config, and what to set in it.

    Returns:
        MMEngine's ``Config``, nothing written.

    Raises:
        Exception: Whatever MMEngine, the config itself, or a setting that cannot be
            made, raises.
    """
    from mmengine.config import Config

    config = Config.fromfile(spec.config)
    before = parse_flat(config.to_dict())
    config.merge_from_dict(complete_settings(before, spec.settings))
    config.work_dir = spec.folder
    config.launcher = 'none' if spec.ranks == 1 else 'pytorch'
    _drop_amp_arguments(config)
    config.resume = False
    if spec.is_whole:
        if spec.hook:
            _set_arguments(config, spec.hook)
        return config
    for key in (*_VALIDATION, *_TEST):
        config[key] = None
    _set_hooks(config, spec)
    if config.get('visualizer'):
        config.visualizer['vis_backends'] = [{'type': 'LocalVisBackend'}]
    randomness = dict(config.get('randomness') or {})
    if randomness.get('seed') is None:
        randomness['seed'] = 0
    config.randomness = randomness
    return config


def _drop_amp_arguments(config: Any) -> None:
    """Removes AMP arguments, which a plain OptimWrapper refuses, from a config."""
    wrapper = config.get('optim_wrapper')
    if wrapper and wrapper.get('type', 'OptimWrapper') == 'OptimWrapper':
        for name in ('loss_scale', 'dtype', 'use_fsdp'):
            wrapper.pop(name, None)


def _set_arguments(config: Any, arguments: Mapping[str, Any]) -> None:
    """Sets arguments of GPUEfficiencyHook in a config, and adds the hook if missing."""
    ours = _find_ours(config)
    for hook in ours:
        hook.update(arguments)
    if not ours:
        given = config.get('default_hooks') or {}
        config.default_hooks = {**given, HOOK_KEY: {'type': HOOK_TYPE, **arguments}}


def _find_ours(config: Any) -> list[Any]:
    """Returns GPUEfficiencyHook's entries in a config's default and custom hooks."""
    given = (config.get('default_hooks') or {}).values()
    hooks = (*given, *(config.get('custom_hooks') or ()))
    return [hook for hook in hooks if is_our_hook(_kind(hook))]


def _set_hooks(config: Any, spec: TrialSpec) -> None:
    given = dict(config.get('default_hooks') or {})
    custom = list(config.get('custom_hooks') or [])
    ours = _find_ours(config)
    saver = given.get('checkpoint')
    hooks = {name: hook for name, hook in given.items() if _stays(hook)}
    # MMEngine would put its own in the place of one that is merely missing
    hooks['checkpoint'] = None
    if spec.hook is not None or (spec.keeps_hook and ours):
        # what the user had set of it stays
        own = dict(ours[0]) if ours else {}
        # a trial leaves nothing but its evidence
        off = dict.fromkeys(('summary', 'write_config', 'slurm_comment'), False)
        fixed = {'type': HOOK_TYPE, **off}
        hooks[HOOK_KEY] = {**own, **fixed, **(spec.hook or {})}
    save_interval = spec.save_interval or (ENDLESS if spec.last_saves else None)
    if save_interval is not None:
        content = dict(saver) if isinstance(saver, dict) else {}
        hooks['checkpoint'] = {
            'type': 'CheckpointHook',
            'by_epoch': False,
            'interval': save_interval,
            'max_keep_ckpts': 1,
            'save_last': False,
            **{key: content[key] for key in _CONTENT_OF_SAVES if key in content},
        }
    config.default_hooks = hooks
    config.custom_hooks = list(filter(_stays, custom))


def _kind(hook: Any) -> Any:
    return hook.get('type') if isinstance(hook, dict) else type(hook)


def _stays(hook: Any) -> bool:
    """True if a trial keeps a hook: all but CheckpointHook and GPUEfficiencyHook."""
    kind = _kind(hook)
    return not (is_our_hook(kind) or bare_name(kind).endswith('CheckpointHook'))


def classify_error(kind: str, message: str) -> TrialEnd:
    """Classifies how a trial ended by the exception that ended it.

    Args:
        kind: Name of the exception's class.
        message: Its whole text; of an error in a worker, the worker's traceback.
    """
    lines = [line.strip() for line in message.splitlines() if line.strip()] or ['']
    decisive = lines[-1] if 'Traceback (most recent call last)' in message else lines[0]
    line = decisive if decisive.startswith(kind) else f'{kind}: {decisive}'.rstrip(': ')
    said = f'{kind} {message}'.lower()
    is_full = kind.endswith('MemoryError') or any(part in said for part in _NO_MEMORY)
    return TrialEnd('out_of_memory' if is_full else 'failed', shorten(line))


def main(text: str) -> None:
    """Trains the trial whose specification is given as JSON.

    Args:
        text: JSON: ``spec`` with the fields of a TrialSpec; ``parent``, a process id.
    """
    body = json.loads(text)
    spec = TrialSpec(**body['spec'])
    # a rank is a child of torchrun's
    die_with_parent(body['parent'] if spec.ranks == 1 else os.getppid())
    run_child(spec)


if __name__ == '__main__':
    main(sys.argv[1])
