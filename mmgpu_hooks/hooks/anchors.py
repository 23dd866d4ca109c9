"""Where the time ledger is driven from: a few instance attributes of a live run.

``Runner.call_hook`` is the one place that both train loops, their forks and most
custom loops go through, so the moments around it are the anchors: what follows
``before_train_iter`` is the step, what follows ``after_train_iter`` is the wait for
the next batch, and what happens inside is hooks. Only instance attributes are set,
and all of them are taken away again.
"""

from __future__ import annotations

from typing import Any, Callable

from mmengine.hooks import RuntimeInfoHook

from mmgpu_hooks.evidence.ledger import TimeLedger
from mmgpu_hooks.hooks.guard import Guard

_FOLLOWING = {
    'before_train': 'data_wait',
    'before_train_epoch': 'data_wait',
    'before_train_iter': 'step',
    'after_train_iter': 'data_wait',
    'after_train_epoch': 'other',
    'after_train': 'other',
}
"""Part that the loop itself is in once a hook point is over."""

_NOTHING = object()


class LoopAnchors:
    """Drives a ledger from one runner.

    Args:
        ledger: The ledger to drive.
        guard: Switches the ledger off when it fails.
        on_epoch: Called when an epoch of training has begun.
        on_save: Called after each checkpoint save.
        is_replaying: Whether the loop, resumed, draws old batches before its first
            iteration: that is neither a wait nor the workers' start.
    """

    def __init__(
        self,
        ledger: TimeLedger,
        guard: Guard,
        on_epoch: Callable[[], None],
        on_save: Callable[[], None],
        is_replaying: bool = False,
    ) -> None:
        self._ledger = ledger
        self._guard = guard
        self._on_epoch = on_epoch
        self._on_save = on_save
        self._is_replaying = is_replaying
        self._set: list[tuple[Any, str, Any, Any]] = []
        self._open = False

    def install(self, runner: Any) -> None:
        """Set the anchors on ``runner``."""
        self._open = True
        self._wrap(runner, 'call_hook', self._around_call_hook)
        self._wrap(runner, 'save_checkpoint', self._around_save)
        for hook in runner.hooks:
            # reading the losses waits for the GPU: that is the step's own time
            if isinstance(hook, RuntimeInfoHook):
                self._wrap(hook, 'after_train_iter', self._around_loss_reading)

    def close(self) -> None:
        """Take every anchor away again; a second call does nothing."""
        # a wrapper that somebody put around ours keeps calling it: be inert then
        self._open = False
        while self._set:
            owner, name, ours, before = self._set.pop()
            if vars(owner).get(name) is not ours:
                continue
            if before is _NOTHING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

    def _wrap(
        self, owner: Any, name: str, around: Callable[[Callable[..., Any]], Any]
    ) -> None:
        before = vars(owner).get(name, _NOTHING)
        ours = around(getattr(owner, name))
        setattr(owner, name, ours)
        self._set.append((owner, name, ours, before))

    def _drive(self, function: Callable[..., Any], *args: Any) -> Any:
        return self._guard.run('ledger', function, *args) if self._open else None

    def _around_call_hook(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call_hook(*args: Any, **kwargs: Any) -> Any:
            name = args[0] if args else kwargs.get('fn_name')
            is_outer = self._drive(self._enter, name)
            result = original(*args, **kwargs)
            self._drive(self._leave, name, is_outer)
            return result

        return call_hook

    def _enter(self, name: str) -> bool:
        """Whether the loop itself calls: hooks may call hook points of their own."""
        ledger = self._ledger
        if name == 'before_train_iter' and ledger.depth > 1:
            # an error inside a hook or a validation was swallowed by the loop
            ledger.unwind()
        if name == 'before_val':
            ledger.push('validation')
        elif ledger.depth == 1:
            ledger.push('hooks')
            return True
        return False

    def _leave(self, name: str, is_outer: bool) -> None:
        ledger = self._ledger
        if name == 'after_val':
            ledger.pop('validation')
        elif is_outer:
            ledger.unwind()
            following = _FOLLOWING.get(name)
            if name == 'before_train_epoch' and self._is_replaying:
                following, self._is_replaying = 'other', False
            if following is not None:
                ledger.switch(following)
            if name == 'before_train_epoch':
                self._on_epoch()

    def _around_save(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def save_checkpoint(*args: Any, **kwargs: Any) -> Any:
            self._drive(self._ledger.push, 'checkpoint_save')
            try:
                return original(*args, **kwargs)
            finally:
                self._drive(self._ledger.pop, 'checkpoint_save')
                self._drive(self._on_save)

        return save_checkpoint

    def _around_loss_reading(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def after_train_iter(*args: Any, **kwargs: Any) -> Any:
            self._drive(self._ledger.push, 'step')
            try:
                return original(*args, **kwargs)
            finally:
                self._drive(self._ledger.pop, 'step')

        return after_train_iter
