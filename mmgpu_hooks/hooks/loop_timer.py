"""Drives the time ledger from one Runner: hooks told apart exactly, saves, waits.

MMEngine's ``call_hook`` is a loop of a few lines over the Runner's hooks, the same in
0.7 to 0.10, in `FlexibleRunner` and in the maintained forks. Where a Runner's is
MMEngine's own, the same loop runs here with one stamp after each hook. Any other is
timed as a whole.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Callable

from mmengine.hooks import RuntimeInfoHook
from mmengine.runner import FlexibleRunner, IterBasedTrainLoop

from mmgpu_hooks.measure.clock import monotonic_s, process_cpu_s, thread_cpu_s
from mmgpu_hooks.measure.ledger import LAP, TimeLedger
from mmgpu_hooks.measure.loader.queue import WaitTimer
from mmgpu_hooks.measure.patches import Patches
from mmgpu_hooks.schema.parts import UNATTRIBUTED

QUIET = ('checkpoint_save', 'validation')
"""Parts that hold whatever hooks are called inside them."""

FOLLOWING: Mapping[str, str] = {
    'before_train_iter': 'step',
    'after_train_iter': 'loop',
    'after_train': 'other',
}

Calls = Mapping[str, Sequence[Callable[[], Any]]]
"""What to call at hook points, by their names; it must not raise."""


class HookTimer:
    """Makes the function that calls a Runner's hooks and times each.

    Args:
        runner: The runner.
        ledger: Gets the seconds.
        before: Called right before the hooks of a point: of ``before_val`` alone.
        after: Called right after the hooks of a point; of a validation after
            ``after_val`` alone.
    """

    def __init__(
        self, runner: Any, ledger: TimeLedger, before: Calls, after: Calls
    ) -> None:
        self._runner = runner
        self._ledger = ledger
        self._before = before
        self._after = after
        self.following = dict(FOLLOWING)
        """What the loop does once the hooks of a point are done, by its name."""
        self.is_open = True
        """While false, hooks are called and nothing is timed."""

    def make(self) -> Callable[..., None]:
        """The function to set as ``runner.call_hook``."""
        runner, ledger, original = self._runner, self._ledger, self._runner.call_hook
        each = _make_loop(runner, ledger) if is_plain(runner) else None
        running, note, clock = ledger.running, ledger.tape.extend, ledger.clock
        before, after, following = self._before, self._after, self.following

        def call_hook(fn_name: str, **kwargs: Any) -> None:
            now = running[-1]
            if not self.is_open or now is QUIET[0] or now is QUIET[1]:
                original(fn_name, **kwargs)
                is_end = fn_name == 'after_val' and self.is_open
                if is_end and any(one is QUIET[1] for one in running):
                    for call in after.get(fn_name, ()):
                        call()
                    ledger.pop('validation')
                return
            if fn_name == 'before_train_iter':
                # an error that the loop swallowed may have left something open
                if len(running) > 1:
                    note((clock(), running[-1]))
                    del running[1:]
            elif fn_name == 'before_val':
                ledger.push('validation')
                for call in before.get(fn_name, ()):
                    call()
                original(fn_name, **kwargs)
                return
            depth = len(running)
            note((clock(), running[-1]))
            running.append('hooks')
            try:
                if each is None:
                    running[-1] = UNKNOWN_HOOK
                    original(fn_name, **kwargs)
                else:
                    each(fn_name, kwargs)
            finally:
                note((clock(), running[-1]))
                del running[depth:]
            if depth == 1:
                running[0] = following.get(fn_name, running[0])
            for call in after.get(fn_name, ()):
                call()

        return call_hook


class _Unattributed:
    """Stands for the hooks of a Runner that calls them in a way of its own."""


UNKNOWN_HOOK = _Unattributed()


def _make_loop(
    runner: Any, ledger: TimeLedger
) -> Callable[[str, Mapping[str, Any]], None]:
    running, note, clock = ledger.running, ledger.tape.extend, ledger.clock
    keeps_cause = isinstance(runner, FlexibleRunner)

    def call_each(fn_name: str, kwargs: Mapping[str, Any]) -> None:
        top = len(running) - 1
        # hooks insert, append and remove themselves in mid-call
        for hook in runner._hooks:
            if hasattr(hook, fn_name):
                running[top] = hook
                try:
                    getattr(hook, fn_name)(runner, **kwargs)
                except TypeError as error:
                    cause = error if keeps_cause else None
                    raise TypeError(f'{error} in {hook}') from cause
                note((clock(), hook))

    return call_each


def is_plain(runner: Any) -> bool:
    """Whether a Runner calls its hooks by MMEngine's own loop, and nothing else."""
    if 'call_hook' in vars(runner):
        return False
    function = type(runner).call_hook
    code = getattr(function, '__code__', None)
    return (
        code is not None
        and not hasattr(function, '__wrapped__')
        and os.path.join('mmengine', 'runner') in code.co_filename
        and code.co_names == ('_hooks', 'hasattr', 'getattr', 'TypeError')
    )


class LoopTimer:
    """Times everything that a train loop does.

    Args:
        runner: The runner, its train loop built and not yet running.
        device: What the model runs on. Anywhere but on ``cpu``, reading the losses
            (`RuntimeInfoHook`) is where the host waits for the device, and so step.
        on_save: Called after each checkpoint save; it must not raise.
    """

    def __init__(
        self,
        runner: Any,
        device: str,
        on_save: Callable[[], Any],
    ) -> None:
        self._runner = runner
        self._on_save = on_save
        self._patches = Patches()
        self.before: dict[str, tuple[Callable[[], Any], ...]] = {}
        """What to call at hook points, as :class:`HookTimer` says."""
        self.after: dict[str, tuple[Callable[[], Any], ...]] = {}
        self.ledger = TimeLedger(
            monotonic_s,
            name_hook=functools.partial(_name_hook, device != 'cpu'),
        )
        self.waits = WaitTimer(
            self.ledger,
            loading_cpu_clock(runner.train_dataloader),
            skipped=runner.train_loop.iter if is_replaying(runner) else 0,
        )
        self.hooks = HookTimer(runner, self.ledger, self.before, self.after)
        """Calls the hooks."""

    def open(self) -> None:
        """Put everything in place."""
        runner, patches = self._runner, self._patches
        patches.set(runner, 'call_hook', self.hooks.make())
        self._time_saves(runner, 'save_checkpoint')
        if not runner.rank:
            for hook in runner.hooks:
                # MMEngine's CheckpointHook publishes without the runner
                if hasattr(hook, '_publish_model'):
                    self._time_saves(hook, '_publish_model')

    def _time_saves(self, owner: Any, name: str) -> None:
        original = getattr(owner, name)
        thread, ledger = threading.get_ident(), self.ledger

        def save(*args: Any, **kwargs: Any) -> Any:
            # of a save inside a save the outer one counts
            is_ours = self.hooks.is_open and threading.get_ident() == thread
            if not is_ours or ledger.part == 'checkpoint_save':
                return original(*args, **kwargs)
            ledger.push('checkpoint_save')
            try:
                return original(*args, **kwargs)
            finally:
                ledger.pop('checkpoint_save')
                self._on_save()

        self._patches.set(owner, name, save)

    def follow(self, iterator: Any) -> None:
        """Time the waits of the loader's new iterator."""
        if hasattr(iterator, '_next_data') and hasattr(iterator, '_num_yielded'):
            self.waits.follow(iterator)
        else:
            self.give_up_waits()

    def give_up_waits(self) -> None:
        """Batches come from no PyTorch iterator: all between two steps is the wait."""
        self.hooks.following['after_train_iter'] = 'data_wait'

    def end_iteration(self) -> Callable[[], None]:
        """A function to call where an iteration ends."""
        note, clock = self.ledger.tape.extend, self.ledger.clock
        running = self.ledger.running

        def end() -> None:
            now = clock()
            note((now, running[-1], now, LAP))

        return end

    def stop(self) -> None:
        """Only pass calls on from here on: somebody may have wrapped ours."""
        self.hooks.is_open = self.waits.is_open = False

    def close(self) -> None:
        """Leave the Runner as it was; a second call does nothing."""
        self.stop()
        self.waits.close()
        self._patches.close()


def _name_hook(is_loss_step: bool, hook: Any, part: str) -> str:
    if hook is UNKNOWN_HOOK:
        return UNATTRIBUTED
    if is_loss_step and part == 'step' and isinstance(hook, RuntimeInfoHook):
        return 'step'
    return type(hook).__name__


def loading_cpu_clock(loader: Any) -> Callable[[], float]:
    """CPU seconds of what loads inside the waits for a loader."""
    # without workers the loading has threads of its own (OpenCV, torch)
    loads_itself = getattr(loader, 'num_workers', None) == 0
    return process_cpu_s if loads_itself else thread_cpu_s


def is_replaying(runner: Any) -> bool:
    """Whether a resumed loop first draws again every batch it had trained on."""
    loop = runner.train_loop
    return isinstance(loop, IterBasedTrainLoop) and loop.iter > 0
