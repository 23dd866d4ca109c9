"""At which points of training a hook does something."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mmengine.hooks import Hook

_POINTS = {
    'before_train': '',
    'before_train_epoch': '_before_epoch',
    'before_train_iter': '_before_iter',
    'after_train_iter': '_after_iter',
    'after_train_epoch': '_after_epoch',
    'after_train': '',
}
"""Hook points of training, with the method of ``Hook`` that each calls."""


def own_points(hook: Any) -> Iterator[str]:
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
