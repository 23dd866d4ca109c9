"""Tells hooks apart exactly, by one function in the place of ``Runner.call_hook``.

MMEngine's ``call_hook`` is a loop of a few lines over the Runner's hooks, the same in
0.7 to 0.10, in `FlexibleRunner` and in the maintained forks. Where a Runner's is
MMEngine's own, the same loop runs here with one stamp after each hook. Any other is
timed as a whole.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Callable

from mmengine.runner import FlexibleRunner

from mmgpu_hooks.measure.ledger import TimeLedger

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
                if fn_name == 'after_val' and self.is_open and 'validation' in running:
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
