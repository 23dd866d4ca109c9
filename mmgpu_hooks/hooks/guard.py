"""Keeps every failure of ours away from training."""

from __future__ import annotations

from typing import Any, Callable, TypeVar

from mmgpu_hooks.measure.absent import SourceError

_T = TypeVar('_T')


class Guard:
    """Runs the sources; one that fails is switched off for good, said once.

    Args:
        on_off: Called once per failing source with its name and the reason.
    """

    def __init__(self, on_off: Callable[[str, str], None]) -> None:
        self._on_off = on_off
        self.off: dict[str, str] = {}

    def run(
        self, source: str, function: Callable[..., _T], *args: Any, **kwargs: Any
    ) -> _T | None:
        """Call ``function`` unless ``source`` is off.

        Returns:
            What it returned, or ``None`` when it failed now or before.
        """
        if source in self.off:
            return None
        return self.clean_up(source, function, *args, **kwargs)

    def clean_up(
        self, source: str, function: Callable[..., _T], *args: Any, **kwargs: Any
    ) -> _T | None:
        """Call ``function`` even when ``source`` is off: it lets go what was opened."""
        try:
            return function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  # training must not see it
            self.switch_off(source, error)
            return None

    def switch_off(self, source: str, error: Exception) -> None:
        """Note that a source failed; only the first time counts."""
        if source in self.off:
            return
        text = ' '.join(str(error).split())
        # our own error is a sentence; of a foreign one the type says more than the text
        if not isinstance(error, SourceError):
            text = f'{type(error).__name__}: {text}'
        self.off[source] = text
        try:
            self._on_off(source, text)
        except Exception:  # noqa: BLE001  # not even the warning may do harm
            return
