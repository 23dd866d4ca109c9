"""Notices each iterator that a loader makes, before and after it is made."""

from __future__ import annotations

from typing import Any, Callable


class CreationWatch:
    """Stands where a loader makes its iterators.

    ``DataLoader.__iter__`` makes them through ``_get_iterator``; an instance attribute
    of that name sees them all, in both train loops, and the loader stays the object it
    was. A copy or a pickle of the loader has the loader's own method in its place.

    Args:
        loader: The loader; anything without ``_get_iterator`` is left alone.
        before: Called before each creation; it must not raise.
        after: Called with the new iterator, or with ``None`` when the creation
            failed; it must not raise.
    """

    def __init__(
        self,
        loader: Any,
        before: Callable[[], None],
        after: Callable[[Any], None],
    ) -> None:
        self._loader = loader
        self._before = before
        self._after = after
        self._make = getattr(type(loader), '_get_iterator', None)
        own = getattr(loader, '__dict__', {})
        self.untold: dict[str, str] = {}
        """Why iterators are not seen, by figure."""
        if not callable(self._make):
            self.untold['loader workers'] = (
                f'batches come from a {type(loader).__name__}, which is no DataLoader '
                'of PyTorch: its settings and workers cannot be seen'
            )
        elif '_get_iterator' in own:
            self.untold['loader workers'] = (
                'something else stands where the loader makes its iterators'
            )
        self.active = not self.untold
        if self.active:
            loader._get_iterator = self

    def __call__(self) -> Any:
        """Make an iterator, as the loader would."""
        assert self._make is not None
        if not self.active:  # whoever wrapped us may go on calling us
            return self._make(self._loader)
        iterator = None
        self._before()
        try:
            iterator = self._make(self._loader)
        finally:
            self._after(iterator)
        return iterator

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._loader, '_get_iterator')

    def close(self) -> None:
        """Give the loader its own method back."""
        if self.active and vars(self._loader).get('_get_iterator') is self:
            del self._loader._get_iterator
        self.active = False
