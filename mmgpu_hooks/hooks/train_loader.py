"""Finds a Runner's train loader before it starts workers.

Iteration-based loops of MMEngine start them in their constructor, before any hook
point. The constructor of a hook runs before that. So from then on, until the train
loop is built, MMEngine's ``BaseLoop`` shows each loop once it has its loader.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

from mmengine.runner import BaseLoop

from mmgpu_hooks.measure.patches import Patches

_patches = Patches()
_waiting: dict[int, weakref.ref[Any]] = {}
"""Hooks whose train loop was not built yet, by their ids."""


def expect_loop(hook: Any) -> None:
    """Call ``hook.see_loop(loop)`` when its Runner's train loop gets its loader."""
    if not _waiting:
        original = BaseLoop.__init__

        @functools.wraps(original)
        def __init__(loop: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            original(loop, *args, **kwargs)
            given = args[1] if len(args) > 1 else kwargs.get('dataloader')
            for find_hook in list(_waiting.values()):
                one = find_hook()
                if one is not None and _is_train_loop_of(one, loop, given):
                    expect_no_loop(one)
                    one.see_loop(loop)

        _patches.set(BaseLoop, '__init__', __init__)
    key = id(hook)
    _waiting[key] = weakref.ref(hook, lambda _: _forget(key))


def expect_no_loop(hook: Any) -> None:
    """Wait no longer for its train loop."""
    _forget(id(hook))


def _forget(key: int) -> None:
    _waiting.pop(key, None)
    if not _waiting:
        _patches.close()


def _is_train_loop_of(hook: Any, loop: Any, given: Any) -> bool:
    runner = getattr(loop, '_runner', None)
    is_ours = any(one is hook for one in getattr(runner, '_hooks', ()))
    # loops of validation get another one
    return is_ours and given is getattr(runner, '_train_dataloader', None)
