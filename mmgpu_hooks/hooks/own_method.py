"""Our hook's own methods: replaced while it records, a subclass's kept."""

from __future__ import annotations

from typing import Any, Callable

_OURS = ('mmengine', 'mmgpu_hooks')
"""Packages whose methods of our hook's do nothing that must be kept."""

_CALLED = {'before_train_iter': '_before_iter', 'after_train_iter': '_after_iter'}
"""What MMEngine's own methods call, for a hook that does the same at several points."""


def is_empty(hook: Any, name: str) -> bool:
    """Whether our hook's method is no user's, and so does nothing that must be kept."""
    methods = [getattr(hook, one) for one in (name, _CALLED[name])]
    return all(one.__module__.partition('.')[0] in _OURS for one in methods)


def followed_by_own(
    hook: Any, name: str, ours: Callable[..., None]
) -> Callable[..., None]:
    """``ours``, and then what a user's subclass of our hook does at the same point.

    Args:
        hook: Our hook.
        name: Of its method that ``ours`` is set in place of.
        ours: Called with the same arguments.
    """
    if is_empty(hook, name):
        return ours
    theirs = getattr(hook, name)

    def both(*args: Any, **kwargs: Any) -> None:
        ours(*args, **kwargs)
        theirs(*args, **kwargs)

    return both
