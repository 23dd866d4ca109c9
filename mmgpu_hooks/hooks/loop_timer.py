"""Drives the time ledger from one Runner's train loop."""

from __future__ import annotations

import functools
import threading
from typing import Any, Callable

from mmengine.hooks import RuntimeInfoHook
from mmengine.runner import IterBasedTrainLoop

from mmgpu_hooks.hooks.call_hook import UNKNOWN_HOOK, HookTimer
from mmgpu_hooks.measure.clock import monotonic_s, process_cpu_s, thread_cpu_s
from mmgpu_hooks.measure.ledger import LAP, TimeLedger
from mmgpu_hooks.measure.loader.waits import WaitTimer
from mmgpu_hooks.measure.patches import Patches
from mmgpu_hooks.schema.parts import UNATTRIBUTED


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
        patches.set(runner, 'call_hook', self.hooks.make(), 'times each hook')
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

        self._patches.set(owner, name, save, 'times saves')

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
