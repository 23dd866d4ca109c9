"""Methods of hooks that are timed in every iteration, because they take long at times.

What is found by one long call may have been held up by the machine. So a method is
given up again when it goes on without one: else, on a busy machine, all would be timed
for ever after a while, and each iteration would cost more than it did at the begin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

from mmgpu_hooks.evidence.hook_shares import labels_of
from mmgpu_hooks.evidence.ledger import TimeLedger
from mmgpu_hooks.hooks.instance_patches import InstancePatches

FOLLOWED = 3000
"""Iterations without a long call after which a method is given up: half as many again
as the longest search for one, so that whatever a search finds each time is kept."""


@dataclass(frozen=True, eq=False)
class HookMethod:
    """A method of a hook that is called in each iteration."""

    hook: Any
    point: str
    """Its name."""
    label: str
    """The name of the hook's class, a space and what tells it from all others; the last
    word is the part that the loop is in when it calls the method."""

    @property
    def hook_name(self) -> str:
        """The name of the hook's class."""
        return self.label.partition(' ')[0]


@dataclass
class _Followed:
    method: HookMethod
    patches: InstancePatches
    until: int | None = None
    """The iteration in which it is given up, as it seems now; ``None`` while new."""


class FollowedHooks:
    """Those that are followed.

    Args:
        ledger: Gets what they take.
        on_error: Gets a failure of the ledger.
    """

    def __init__(
        self, ledger: TimeLedger, on_error: Callable[[Exception], None]
    ) -> None:
        self._ledger = ledger
        self._on_error = on_error
        self._followed: dict[str, _Followed] = {}

    def add(self, method: HookMethod) -> None:
        """Time one in every iteration from here on."""
        self._ledger.shares.follow(method.label)
        labels = labels_of(method.hook_name, True, method.label)
        original = getattr(method.hook, method.point)
        booked = self._ledger.book_calls(original, labels, self._on_error)
        patches = InstancePatches()
        patches.set(method.hook, method.point, booked)
        self._followed[method.label] = _Followed(method, patches)

    def release(self, iterations: int) -> list[HookMethod]:
        """Give up those that have not taken long for a while.

        Args:
            iterations: Done so far.

        Returns:
            Those given up.
        """
        took_long = self._ledger.shares.take_long_timed()
        released = []
        for label, one in list(self._followed.items()):
            if one.until is None or label in took_long:
                one.until = iterations + FOLLOWED
            elif iterations >= one.until:
                del self._followed[label]
                one.patches.close()
                self._ledger.shares.release(label)
                released.append(one.method)
        return released

    def close(self) -> None:
        """Leave every hook as it was; a second call does nothing."""
        for one in self._followed.values():
            one.patches.close()
        self._followed.clear()
