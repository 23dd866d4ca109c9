"""The process of one trial: ``python -m mmgpu_hooks.experiment.trial_child``.

It trains the user's config with MMEngine's own Runner. A line of its events file says
what each block of iterations took and how it ended; each line on standard input asks
for a block.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmengine.hooks import Hook

from mmgpu_hooks.experiment.trial import EVENTS_NAME, shorten
from mmgpu_hooks.experiment.trial_config import read_trial_config
from mmgpu_hooks.measure.clock import monotonic_s
from mmgpu_hooks.schema.tried import TrialSpec

_PR_SET_PDEATHSIG = 1
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
"""What CUDA, the C library, NumPy, PyTorch's allocator and its DataLoader say."""


class TrialOver(SystemExit):
    """Raised inside a training loop to leave it, since an epoch has no other exit.

    A SystemExit, so that a training's own ``except Exception`` lets it through.
    """


def report(events: Path, event: str, **body: Any) -> None:
    """Append one event."""
    with events.open('a') as file:
        file.write(json.dumps({'event': event, **body}) + '\n')


class TrialHook(Hook):
    """Trains a block of iterations, reports what each took, and waits for the next.

    An iteration is timed from the end of one to the end of the next; the time spent
    waiting for the next block is in none of them.

    Args:
        events: The file to report to.
        blocks: Iterations of each block; training ends when it does.
    """

    # after every other hook: the last iteration is recorded whole
    priority = 'LOWEST'

    def __init__(self, events: Path, blocks: Iterator[int]) -> None:
        self._events, self._blocks = events, blocks
        self._left = next(blocks, 1)
        self._last_s: float | None = None
        self._seconds: list[float] = []
        self._starts: list[int] = []
        self._is_start = False
        self._restarts = 0
        self.done = 0

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

    def after_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        now_s = monotonic_s()
        self.done += 1
        # the start of the very first is unknown
        self._seconds.append(now_s - self._last_s if self._last_s is not None else 0.0)
        self._last_s = now_s
        self._left -= 1
        if self._left > 0:
            return
        sampler = runner.train_dataloader.batch_sampler
        report(
            self._events,
            'block',
            seconds=self._seconds,
            starts=self._starts,
            batch_size=getattr(sampler, 'batch_size', None),
            # this hook is called before the loop counts the iteration
            left=runner.max_iters - runner.iter - 1,
        )
        block = next(self._blocks, None)
        if block is None:
            raise TrialOver
        self._left, self._seconds, self._starts = block, [], []
        self._last_s = monotonic_s()


def run_child(spec: TrialSpec) -> None:
    """Train, and report how it ended."""
    events = Path(spec.folder, EVENTS_NAME)
    hook = TrialHook(events, map(int, sys.stdin))
    status, reason = 'completed', None
    try:
        _train(spec, hook)
    except TrialOver:
        pass
    # a training may end in any way, and each of them is a result
    except BaseException as error:  # noqa: BLE001
        traceback.print_exc()
        status, reason = classify_error(type(error).__name__, str(error))
    report(events, 'over', status=status, error=reason, iterations=hook.done)


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


def classify_error(kind: str, message: str) -> tuple[str, str]:
    """Status and reason of a trial that an exception ended.

    Args:
        kind: Name of the exception's class.
        message: Its whole text; of an error in a worker, the worker's traceback.
    """
    lines = [line.strip() for line in message.splitlines() if line.strip()] or ['']
    decisive = lines[-1] if 'Traceback (most recent call last)' in message else lines[0]
    line = decisive if decisive.startswith(kind) else f'{kind}: {decisive}'.rstrip(': ')
    said = f'{kind} {message}'.lower()
    is_full = kind.endswith('MemoryError') or any(part in said for part in _NO_MEMORY)
    return 'out_of_memory' if is_full else 'failed', shorten(line)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process, and those it forks, when their parent ends.

    A held worker would not notice the end of its training. Linux only.

    Raises:
        SystemExit: If the parent is gone already.
    """
    prctl = getattr(ctypes.CDLL(None), 'prctl', None)
    if prctl is not None:

        def ask() -> None:
            prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))

        ask()
        os.register_at_fork(after_in_child=ask)
    if os.getppid() != parent:
        raise SystemExit('the process that started this trial is gone')


def main(text: str) -> None:
    """Train.

    Args:
        text: JSON: ``spec`` with the fields of a TrialSpec; ``parent``, a process id.
    """
    body = json.loads(text)
    die_with_parent(body['parent'])
    run_child(TrialSpec(**body['spec']))


if __name__ == '__main__':
    main(sys.argv[1])
