"""Where the time ledger is driven from: a few instance attributes of a live run.

``Runner.call_hook`` is the one place that both train loops, their forks and most
custom loops go through, so the moments around it are the anchors: what follows
``before_train_iter`` is the step, what follows ``after_train_iter`` is the wait for
the next batch, and what happens inside is hooks. Only instance attributes are set,
and all of them are taken away again.
"""

from __future__ import annotations

import threading
from typing import Any, Callable

from mmgpu_hooks.evidence.ledger import TimeLedger
from mmgpu_hooks.hooks.close_looks import CloseLooks
from mmgpu_hooks.hooks.guard import Guard
from mmgpu_hooks.hooks.instance_patches import InstancePatches

_FOLLOWING = {
    'before_train': 'data_wait',
    'before_train_epoch': 'data_wait',
    'before_train_iter': 'step',
    'after_train_iter': 'data_wait',
    'after_train_epoch': 'other',
    'after_train': 'other',
}
"""Part that the loop itself is in once a hook point is over."""


class LoopAnchors:
    """Drives a ledger from one runner.

    Args:
        ledger: The ledger to drive.
        guard: Switches the ledger off when it fails.
        own: Our hook, which is not timed like the others.
        on_epoch: Called when an epoch of training has begun.
        on_save: Called after each checkpoint save.
        is_replaying: Whether the loop, resumed, draws old batches before its first
            iteration: that is the start of the loading, and no wait.
    """

    def __init__(
        self,
        ledger: TimeLedger,
        guard: Guard,
        own: Any,
        on_epoch: Callable[[], None],
        on_save: Callable[[], None],
        is_replaying: bool = False,
    ) -> None:
        self._ledger = ledger
        self._guard = guard
        self._own = own
        self._on_epoch = on_epoch
        self._on_save = on_save
        self._is_replaying = is_replaying
        self._patches = InstancePatches()
        self.looks = CloseLooks(ledger, guard, self._note_failure)
        """What happens in each iteration."""
        self._runner: Any = None
        self._publishing: set[int] = set()
        self._open = False

    def install(self, runner: Any) -> None:
        """Set the anchors on ``runner``."""
        self._open = True
        original = runner.call_hook
        looked = self._ledger.book_points(
            original,
            self.looks.points,
            self._around_call_hook(original),
            self._note_failure,
        )
        call_hook = self._ledger.book_plain_points(
            original, self.looks.plain, looked, self._note_failure
        )
        self._patches.set(runner, 'call_hook', call_hook)
        self._runner = runner
        self._book_saves(runner, 'save_checkpoint')
        self._watch_hooks()
        self.looks.begin()

    def _watch_hooks(self) -> None:
        others = [hook for hook in self._runner.hooks if hook is not self._own]
        self.looks.watch_hooks(others)
        for hook in self._runner.hooks:
            # of MMEngine's CheckpointHook: it saves without the runner
            publishes = hasattr(hook, '_publish_model') and not self._runner.rank
            if publishes and id(hook) not in self._publishing:
                self._publishing.add(id(hook))
                self._guard.run('ledger', self._book_saves, hook, '_publish_model')

    def _note_failure(self, source: str, error: Exception) -> None:
        self._guard.switch_off(source, error)
        self.looks.drop(source)
        if source == 'ledger':
            self.stop()

    def stop(self) -> None:
        """Drive the ledger no more."""
        self.looks.close()

    def close(self) -> None:
        """Take every anchor away again; a second call does nothing."""
        # a wrapper that somebody put around ours keeps calling it: be inert then
        self._open = False
        self.looks.close()
        self._patches.close()

    def _around_call_hook(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """For the points that are not in every iteration."""
        off = self._guard.off
        enter = self._guard.wrap('ledger', self._enter)
        leave = self._guard.wrap('ledger', self._leave)

        def call_hook(*args: Any, **kwargs: Any) -> Any:
            if not self._open or 'ledger' in off:
                return original(*args, **kwargs)
            name = args[0] if args else kwargs.get('fn_name')
            is_outer = enter(name)
            result = original(*args, **kwargs)
            if self._open:
                leave(name, is_outer)
            return result

        return call_hook

    def _enter(self, name: Any) -> bool:
        """Whether the loop itself calls: hooks may call hook points of their own."""
        ledger = self._ledger
        if name == 'before_val':
            ledger.push('validation')
        elif name == 'after_train_epoch' and ledger.current == 'data_wait':
            # no batch came: the loader ended its workers
            ledger.rename('worker_startup')
        if not ledger.begin_hooks():
            if name != 'before_train_iter':
                return False
            # an error inside a hook or a validation was swallowed by the loop
            ledger.unwind()
            ledger.begin_hooks()
        return True

    def _leave(self, name: Any, is_outer: bool) -> None:
        if not is_outer:
            if name == 'after_val':
                self._ledger.pop('validation')
            return
        following = _FOLLOWING.get(name)
        if name == 'before_train_epoch':
            self._watch_hooks()
            self._guard.run('epoch', self._on_epoch)
            self.looks.begin_epoch()
            if self._is_replaying:
                following, self._is_replaying = 'worker_startup', False
        self._ledger.end_hooks(following)

    def _book_saves(self, owner: Any, name: str) -> None:
        self._patches.set(owner, name, self._around_save(getattr(owner, name)))

    def _around_save(self, original: Callable[..., Any]) -> Callable[..., Any]:
        begin = self._guard.wrap('ledger', self._ledger.push)
        end = self._guard.wrap('ledger', self._end_save)
        thread = threading.get_ident()

        def save_checkpoint(*args: Any, **kwargs: Any) -> Any:
            # one in another thread holds nothing up, and inside a save is part of it
            is_ours = self._open and threading.get_ident() == thread
            if not is_ours or self._ledger.current == 'checkpoint_save':
                return original(*args, **kwargs)
            begin('checkpoint_save')
            try:
                return original(*args, **kwargs)
            finally:
                if self._open:
                    end()

        return save_checkpoint

    def _end_save(self) -> None:
        self._ledger.pop('checkpoint_save')
        self._on_save()
