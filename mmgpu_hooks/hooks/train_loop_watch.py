"""Calls hooks back when their Runner builds its train loop, before workers start.

Iteration-based loops of MMEngine start workers in their constructor, before any hook
point. A hook is constructed earlier. So while hooks wait for their train loop, a
function of ours stands in the place of ``BaseLoop.__init__``::

    GPUEfficiencyHook()                expect_train_loop(hook)
    Runner.train()
      build_train_loop()
        BaseLoop.__init__              hook.begin_loop(runner)
          build_dataloader()
        BaseLoop.__init__ ends         hook.see_loop(loop), or hook.end_start() if it
                                       raised; the hook waits no longer
        iter(dataloader)               iteration-based loops: workers start
      hook.before_run(runner)          expect_no_train_loop(hook)
"""

from __future__ import annotations

import functools
import weakref
from typing import Any, Protocol

from mmengine.runner import BaseLoop

from mmgpu_hooks.measure.patches import Patches


class TrainLoopWatcher(Protocol):
    """Protocol of a hook that is called back while its Runner builds the train loop."""

    def begin_loop(self, runner: Any) -> None:
        """Starts watching, right before the Runner builds train loop and DataLoader."""

    def see_loop(self, loop: Any) -> None:
        """Starts measuring a train loop that has its DataLoader, but no worker yet."""

    def end_start(self) -> None:
        """Stops watching, as building the train loop has failed."""


_patches = Patches()
_waiting: dict[int, weakref.ref[TrainLoopWatcher]] = {}
"""Hooks whose train loop is not built yet, by ``id()`` of the hook."""


def expect_train_loop(hook: TrainLoopWatcher) -> None:
    """Has a hook called back, once, when its Runner builds the train loop."""
    if not _waiting:
        _watch_building()
    key = id(hook)
    _waiting[key] = weakref.ref(hook, lambda _: _forget(key))


def expect_no_train_loop(hook: TrainLoopWatcher) -> None:
    """Cancels a hook's callback on the train loop; a second call does nothing."""
    _forget(id(hook))


def _forget(key: int) -> None:
    _waiting.pop(key, None)
    if not _waiting:
        _patches.close()


def _watch_building() -> None:
    original = BaseLoop.__init__

    @functools.wraps(original)
    def __init__(loop: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        given = args[1] if len(args) > 1 else kwargs.get('dataloader')
        runner = args[0] if args else kwargs.get('runner')
        begun = _find_hooks(runner, given)
        for hook in begun:
            hook.begin_loop(runner)
        try:
            original(loop, *args, **kwargs)
        except BaseException:
            for hook in begun:
                hook.end_start()
            raise
        for hook in _find_hooks(getattr(loop, '_runner', None), given):
            expect_no_train_loop(hook)
            hook.see_loop(loop)

    _patches.set(BaseLoop, '__init__', __init__)


def _find_hooks(runner: Any, loader: Any) -> list[TrainLoopWatcher]:
    """Finds the hooks that wait for the train loop of a given loader."""
    # loops of validation get another one
    if loader is not getattr(runner, '_train_dataloader', None):
        return []
    waiting = [find_hook() for find_hook in list(_waiting.values())]
    own = getattr(runner, '_hooks', ())
    # by identity: a user's hook may be equal to anything
    return [
        hook
        for hook in waiting
        if hook is not None and any(hook is registered for registered in own)
    ]
