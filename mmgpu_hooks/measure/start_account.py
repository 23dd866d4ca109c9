"""Books each second of a training's start to one part, such as imports.

A hook is built after the model, so what came before is one number, of the process's
age. The time ledger has all from the train loop on, and the record is written once,
with the first iteration.
"""

from __future__ import annotations

from collections.abc import Mapping

from mmgpu_hooks.measure.clock import Clock


class StartAccount:
    """Stopwatch that splits the seconds of a training's start (imports, ...) by part.

    Args:
        clock: Monotonic seconds.
        part: The part that runs.
    """

    def __init__(self, clock: Clock, part: str) -> None:
        self._clock = clock
        self._running = [part]
        self._until_s = self.began_s = clock()
        self._parts_s: dict[str, float] = {}

    @property
    def part(self) -> str:
        """Name of the part of training's start that runs now; thread-safe."""
        return self._running[-1]

    @property
    def is_nested(self) -> bool:
        """True if the part of training's start that runs now is inside another."""
        return len(self._running) > 1

    def push(self, part: str) -> None:
        """Begins a part of a training's start, nested in the one that runs."""
        self._book()
        self._running.append(part)

    def pop(self, part: str) -> float:
        """Ends a part of a training's start, with nested ones; ignored if not running.

        Returns:
            Its seconds so far.
        """
        if part in self._running[1:]:
            self._book()
            while self._running.pop() != part:
                pass
        return self._parts_s.get(part, 0.0)

    def follow(self, part: str) -> None:
        """Replaces the running outermost part of training's start by the next part."""
        self._book()
        self._running[0] = part

    def _book(self) -> None:
        now_s = self._clock()
        part = self._running[-1]
        passed_s = max(now_s - self._until_s, 0.0)
        self._parts_s[part] = self._parts_s.get(part, 0.0) + passed_s
        self._until_s = now_s

    def read(self) -> dict[str, float]:
        """Returns the seconds of a training's start so far, by part."""
        self._book()
        return dict(self._parts_s)


def join_parts(*accounts: Mapping[str, float]) -> dict[str, float]:
    """Adds up mappings from parts of a training's start to their seconds."""
    joined: dict[str, float] = {}
    for account in accounts:
        for part, seconds in account.items():
            joined[part] = joined.get(part, 0.0) + seconds
    return joined
