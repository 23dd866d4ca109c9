"""Attributes set on live objects for a while, and taken away again."""

from __future__ import annotations

from typing import Any, Callable

_OURS = ('mmengine', 'mmgpu_hooks')
"""Packages whose methods of our hook's do nothing that must be kept."""

_CALLED = {'before_train_iter': '_before_iter', 'after_train_iter': '_after_iter'}
"""What MMEngine's own methods call, for a hook that does the same at several points."""

_NOTHING = object()


class InstancePatches:
    """Sets instance attributes; classes are never touched."""

    def __init__(self) -> None:
        self._set: list[tuple[Any, str, Any, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Set ``owner.name`` until :meth:`close`."""
        before = vars(owner).get(name, _NOTHING)
        setattr(owner, name, value)
        self._set.append((owner, name, value, before))

    def close(self) -> None:
        """Take every attribute away again; a second call does nothing.

        One that somebody replaced since is left alone.
        """
        while self._set:
            owner, name, ours, before = self._set.pop()
            if vars(owner).get(name) is not ours:
                continue
            if before is _NOTHING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)


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
