"""Where the time ledger is driven from: a few instance attributes of a live run.

``Runner.call_hook`` is the one place that both train loops, their forks and most
custom loops go through, so the moments around it are the anchors: what follows
``before_train_iter`` is the step, what follows ``after_train_iter`` is the wait for
the next batch, and what happens inside is hooks. Only instance attributes are set,
and all of them are taken away again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Callable

from mmengine.hooks import Hook, RuntimeInfoHook

from mmgpu_hooks.evidence.ledger import TimeLedger
from mmgpu_hooks.evidence.ledger_parts import Point
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


_POINTS = {
    'before_train': '',
    'before_train_epoch': '_before_epoch',
    'before_train_iter': '_before_iter',
    'after_train_iter': '_after_iter',
    'after_train_epoch': '_after_epoch',
    'after_train': '',
}
"""Hook points of training, with the method of ``Hook`` that each calls."""

_Moments = dict[str, tuple[tuple[str, Callable[[], Any]], ...]]
"""What to call at a hook point, each with the source that it belongs to."""


class LoopAnchors:
    """Drives a ledger from one runner.

    Args:
        ledger: The ledger to drive.
        guard: Switches the ledger off when it fails.
        on_epoch: Called when an epoch of training has begun.
        on_save: Called after each checkpoint save.
        is_replaying: Whether the loop, resumed, draws old batches before its first
            iteration: that is the start of the loading, and no wait.
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
        self._patches = InstancePatches()
        self._at_enter: _Moments = {}
        self._at_leave: _Moments = {}
        self._points: dict[Any, Point] = {}
        self._runner: Any = None
        self._watched: set[int] = set()
        self._open = False

    def watch_step(
        self, source: str, begin: Callable[[], Any], end: Callable[[], Any]
    ) -> None:
        """Call ``begin`` before each step is enqueued and ``end`` after it was."""
        self._add(self._at_leave, 'before_train_iter', source, begin)
        self._add(self._at_enter, 'after_train_iter', source, end)

    def watch_wait(
        self, source: str, ask: Callable[[], Any], got: Callable[[], Any]
    ) -> None:
        """Call ``ask`` before each wait for a batch and ``got`` after it."""
        for name in ('before_train_epoch', 'after_train_iter'):
            self._add(self._at_leave, name, source, ask)
        self._add(self._at_enter, 'before_train_iter', source, got)

    @staticmethod
    def _add(
        moments: _Moments, name: str, source: str, call: Callable[[], Any]
    ) -> None:
        moments[name] = (*moments.get(name, ()), (source, call))

    def install(self, runner: Any) -> None:
        """Set the anchors on ``runner``."""
        self._open = True
        for name in ('before_train_iter', 'after_train_iter'):
            self._points[name] = Point(
                following=_FOLLOWING[name],
                before=self._at_enter.get(name, ()),
                after=self._at_leave.get(name, ()),
            )
        original = runner.call_hook
        call_hook = self._ledger.book_points(
            original, self._points, self._around_call_hook(original), self._note_failure
        )
        self._patches.set(runner, 'call_hook', call_hook)
        self._runner = runner
        self._book_saves(runner, 'save_checkpoint')
        self._watch_hooks()

    def _watch_hooks(self) -> None:
        """Those that joined since the last look: hooks may do so at any time."""
        for hook in self._runner.hooks:
            # whoever has no attributes of its own is in plain hooks
            if id(hook) not in self._watched and hasattr(hook, '__dict__'):
                self._watched.add(id(hook))
                self._guard.run('ledger by hook', self._watch_hook, hook)
                # of MMEngine's CheckpointHook: it saves without the runner
                if hasattr(hook, '_publish_model') and not self._runner.rank:
                    self._guard.run('ledger', self._book_saves, hook, '_publish_model')

    def _watch_hook(self, hook: Any) -> None:
        for name in _own_points(hook):
            # reading the losses waits for the GPU: that is the step's own time
            is_loss = name == 'after_train_iter' and isinstance(hook, RuntimeInfoHook)
            booked = self._ledger.book_calls(
                getattr(hook, name),
                'step' if is_loss else type(hook).__name__,
                self._note_error,
            )
            self._patches.set(hook, name, booked)

    def _note_error(self, error: Exception) -> None:
        self._note_failure('ledger', error)

    def _note_failure(self, source: str, error: Exception) -> None:
        self._guard.switch_off(source, error)
        for moments in (self._at_enter, self._at_leave):
            for name, calls in moments.items():
                moments[name] = tuple(call for call in calls if call[0] != source)
        for name, point in self._points.items():
            self._points[name] = replace(
                point,
                before=self._at_enter.get(name, ()),
                after=self._at_leave.get(name, ()),
            )
        if source == 'ledger':
            self.stop()

    def stop(self) -> None:
        """Drive the ledger no more."""
        self._points.clear()

    def close(self) -> None:
        """Take every anchor away again; a second call does nothing."""
        # a wrapper that somebody put around ours keeps calling it: be inert then
        self._open = False
        self.stop()
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
        self._call(self._at_enter.get(name, ()))
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
            if self._is_replaying:
                following, self._is_replaying = 'worker_startup', False
        self._call(self._at_leave.get(name, ()))
        self._ledger.end_hooks(following)

    def _call(self, calls: tuple[tuple[str, Callable[[], Any]], ...]) -> None:
        for source, call in calls:
            try:
                call()
            except Exception as error:  # noqa: BLE001  # training must not see it
                self._note_failure(source, error)

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


def _own_points(hook: Any) -> Iterator[str]:
    """Hook points of training at which this hook does something of its own."""
    kind = type(hook)
    for name, inner in _POINTS.items():
        # a hook need not be a Hook; MMEngine calls what it has
        if not hasattr(hook, name):
            continue
        is_own = getattr(kind, name, None) is not getattr(Hook, name)
        calls_own = inner and getattr(kind, inner, None) is not getattr(Hook, inner)
        if is_own or calls_own or name in vars(hook):
            yield name
