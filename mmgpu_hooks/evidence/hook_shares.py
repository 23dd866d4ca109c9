"""Who took how much of ``hooks``, from iterations of which only some are looked at.

All the time in hooks is known. Which hook took it is known where hooks are timed one
by one: at the points that are seldom, in iterations that are looked at, and for the
hooks that are timed in every iteration. The rest is split as it was in the iterations
looked at, so that the shares never add up to more than there was. An iteration in
which somebody took long is not like the others: what it took beyond the usual belongs
to a hook that is known to take so long, or to nobody: see ``surprises.py``.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Mapping

from mmgpu_hooks.evidence.ledger_parts import (
    BETWEEN,
    EXACT,
    LOOKED,
    PARTS,
    UNSPLIT,
    UNTOLD,
)
from mmgpu_hooks.evidence.surprises import Surprises

LONG_S = 1e-3
"""A call that takes longer stands for itself. Looked at one by one, hooks cost some
10 us more, which is nothing beside it."""

LONG_CALLS = 4
"""More long calls than half as many short ones, after which most are taken to be."""

_SEEN, _TIMED = 'seen ', 'timed '
_MOST_LONG = 2 * LONG_CALLS
"""So that a hook which has become fast again is soon known to be."""


def labels_of(
    name: str, in_every_iteration: bool, method: str | None = None
) -> dict[str, str]:
    """What to book the calls of one hook as, by what runs between the hooks.

    Args:
        name: Of the hook, or a part that its calls belong to.
        in_every_iteration: Whether it is timed in iterations too that are not looked
            at.
        method: The name, a space and what tells this method from others of such
            hooks; the last word is the part that the loop is in when it calls it. By
            default it is told from none.
    """
    if in_every_iteration:
        label = name if name in PARTS else _TIMED + (method or name)
        return dict.fromkeys(BETWEEN, label)
    return {LOOKED: _SEEN + (method or name), EXACT: _TIMED + name}


OWN_LABEL = labels_of('GPUEfficiencyHook', True)[UNSPLIT]
"""What our own hook takes is booked as this."""


class HookShares:
    """Adds up the seconds that hooks took."""

    def __init__(self) -> None:
        self.total_s = 0.0
        """Of all hooks together."""
        self.looks = 0
        """Iterations looked at; kept by whoever looks."""
        self.long: Counter[str] = Counter()
        """By method, its long calls less two for each short one, 0 at least."""
        self.iterations = 0
        """Done so far; kept by whoever looks."""
        self.surprises = Surprises(self._count_timed)
        """Iterations not looked at in which somebody took long."""
        self.longest_s: dict[str, float] = {}
        """By method, its longest call that was long; whoever looks may clear it."""
        self._unsplit_s = 0.0
        self._between_s = 0.0
        self._seen_s: dict[str, float] = defaultdict(float)
        self._timed_s: dict[str, float] = defaultdict(float)
        self._lent_s: dict[str, float] = defaultdict(float)
        self._long_timed: set[str] = set()
        self._usual_s: dict[str, float] = {}
        """By method that is followed, what it took of a look when none was long."""
        self._followed_for: Counter[str] = Counter()
        """By method, iterations not looked at; less those before, while followed."""

    def add(self, label: str, seconds: float, during: str = '') -> None:
        """Add what ended.

        Args:
            label: What ran: of :func:`labels_of`, or what runs between hooks.
            seconds: How long.
            during: What the loop was in before; by default that is unknown.
        """
        self.total_s += seconds
        if label == UNSPLIT:
            self._add_unsplit(seconds, during)
        elif label == LOOKED:
            self._between_s += seconds
        elif label.startswith(_TIMED):
            method = label[len(_TIMED) :]
            self._timed_s[method] += seconds
            if seconds > LONG_S:
                self._long_timed.add(method)
                if method in self._usual_s:
                    self.surprises.note_long(method, seconds)
        elif label.startswith(_SEEN):
            self._add_seen(label[len(_SEEN) :], seconds)

    def add_brief(self, seconds: float) -> None:
        """Add stretches between hooks of which none was long, of iterations not
        looked at, all together."""
        self.total_s += seconds
        self._unsplit_s += seconds

    def _add_unsplit(self, seconds: float, during: str) -> None:
        if seconds > LONG_S:
            usual_s = self._looked_s() / self.looks if self.looks else 0.0
            beyond_s = seconds - usual_s
            if beyond_s > LONG_S:
                self.surprises.add(seconds, beyond_s, during)
                seconds = usual_s
        self._unsplit_s += seconds

    def _add_seen(self, method: str, seconds: float) -> None:
        if seconds > LONG_S:
            self.long[method] = min(self.long[method] + 1, _MOST_LONG)
            self.longest_s[method] = max(self.longest_s.get(method, 0.0), seconds)
            self.surprises.note_long(method, seconds)
            self._timed_s[_hook_of(method)] += seconds
        else:
            if self.long[method]:
                self.long[method] = max(self.long[method] - 2, 0)
            self._seen_s[method] += seconds

    def _looked_s(self) -> float:
        return self._between_s + sum(self._seen_s.values())

    def follow(self, method: str) -> None:
        """From here on a method is timed in every iteration, like those always were."""
        self._lend()
        seen_s = self._seen_s.pop(method, 0.0)
        self._timed_s[method] += seen_s
        self._usual_s[method] = seen_s / self.looks if self.looks else 0.0
        self._followed_for[method] -= self.iterations - self.looks

    def release(self, method: str) -> None:
        """From here on a method that was followed is timed in looks only again."""
        self._lend()
        # as if it had been so all along, or its share of the rest would be too small
        seen_s = self._usual_s.pop(method, 0.0) * self.looks
        self._seen_s[method] += seen_s
        self._timed_s[method] -= seen_s
        self._followed_for[method] += self.iterations - self.looks
        self.long.pop(method, None)

    def _count_timed(self, method: str) -> int:
        """In how many iterations a method was timed, about."""
        followed_for = self._followed_for[method]
        if method in self._usual_s:
            followed_for += self.iterations - self.looks
        return self.looks + followed_for

    def take_long_timed(self) -> set[str]:
        """Those timed in every iteration that took long since the last call."""
        taken, self._long_timed = self._long_timed, set()
        return taken

    def _lend(self) -> None:
        looked_s = self._looked_s()
        if looked_s:
            lent_s, unsplit_s = self._lent_s, self._unsplit_s
            for method, seconds in self._seen_s.items():
                lent_s[_hook_of(method)] += unsplit_s * seconds / looked_s
        # what was split once stays so, whatever is seen later
        self._unsplit_s = 0.0

    def split(self) -> dict[str, float]:
        """Seconds by hook; what passed between two hooks is in none of them."""
        self._lend()
        surprises = self.surprises
        for method, seconds in surprises.share(self.iterations).items():
            self._lent_s[_hook_of(method)] += seconds
        by_hook = {**self._lent_s}
        for spent_s in (self._timed_s, self._seen_s):
            for method, seconds in spent_s.items():
                name = _hook_of(method)
                by_hook[name] = by_hook.get(name, 0.0) + seconds
        if surprises.untold_s:
            by_hook[UNTOLD] = surprises.untold_s
        return by_hook

    def settle(self, by_hook: Mapping[str, float]) -> dict[str, float]:
        """What :meth:`split` gave last, by what is known at the end of them all."""
        settled = dict(by_hook)
        for method, seconds in self.surprises.settle(self.iterations).items():
            name = _hook_of(method)
            settled[name] = settled.get(name, 0.0) + seconds
            settled[UNTOLD] -= seconds
        if settled.get(UNTOLD, 1.0) < LONG_S:
            del settled[UNTOLD]
        return settled


@functools.lru_cache(maxsize=1024)
def _hook_of(method: str) -> str:
    return method.partition(' ')[0]
