"""Who took how much of ``hooks``, from iterations of which only some are looked at.

All the time in hooks is known. Which hook took it is known where hooks are timed one
by one: at the points that are seldom, in iterations that are looked at, and for the
hooks that are timed in every iteration. The rest is split as it was in the iterations
looked at, so that the shares never add up to more than there was.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from mmgpu_hooks.evidence.ledger_parts import BETWEEN, EXACT, LOOKED, PARTS, UNSPLIT

LONG_S = 1e-3
"""A call that takes longer stands for itself. Looked at one by one, hooks cost some
10 us more, which is nothing beside it."""

_SEEN, _TIMED = 'seen ', 'timed '
_TOO_LONG = 4.0
"""Times what hooks usually take: more was no iteration like the others."""


def labels_of(name: str, in_every_iteration: bool) -> dict[str, str]:
    """What to book the calls of one hook as, by what runs between the hooks.

    Args:
        name: Of the hook, or a part that its calls belong to.
        in_every_iteration: Whether it is timed in iterations too that are not looked
            at.
    """
    if in_every_iteration:
        return dict.fromkeys(BETWEEN, name if name in PARTS else _TIMED + name)
    return {LOOKED: _SEEN + name, EXACT: _TIMED + name}


class HookShares:
    """Adds up the seconds that hooks took."""

    def __init__(self) -> None:
        self.total_s = 0.0
        """Of all hooks together."""
        self.looks = 0
        """Iterations looked at; kept by whoever looks."""
        self.long: Counter[str] = Counter()
        """Long calls by hook: whoever has some should be timed in every iteration."""
        self.surprises = 0
        """Iterations not looked at in which somebody took long, nobody knows who."""
        self._unsplit_s = 0.0
        self._between_s = 0.0
        self._seen_s: dict[str, float] = defaultdict(float)
        self._timed_s: dict[str, float] = defaultdict(float)
        self._lent_s: dict[str, float] = defaultdict(float)

    def add(self, label: str, seconds: float) -> None:
        """Add what ended.

        Args:
            label: What ran: of :func:`labels_of`, or what runs between hooks.
            seconds: How long.
        """
        self.total_s += seconds
        if label == UNSPLIT:
            if seconds > LONG_S and self._is_surprise(seconds):
                self.surprises += 1
            else:
                self._unsplit_s += seconds
        elif label == LOOKED:
            self._between_s += seconds
        elif label.startswith(_TIMED):
            self._timed_s[label[len(_TIMED) :]] += seconds
        elif label.startswith(_SEEN):
            name = label[len(_SEEN) :]
            if seconds > LONG_S:
                self.long[name] += 1
                self._timed_s[name] += seconds
            else:
                self._seen_s[name] += seconds

    def _is_surprise(self, seconds: float) -> bool:
        usual_s = self._looked_s() / self.looks if self.looks else 0.0
        return seconds > LONG_S + _TOO_LONG * usual_s

    def _looked_s(self) -> float:
        return self._between_s + sum(self._seen_s.values())

    def split(self) -> dict[str, float]:
        """Seconds by hook; what passed between two hooks is in none of them."""
        looked_s = self._looked_s()
        if looked_s:
            for name, seconds in self._seen_s.items():
                self._lent_s[name] += self._unsplit_s * seconds / looked_s
        # what was split once stays so, whatever is seen later
        self._unsplit_s = 0.0
        names = {**self._timed_s, **self._seen_s}
        return {
            name: self._timed_s.get(name, 0.0)
            + self._seen_s.get(name, 0.0)
            + self._lent_s.get(name, 0.0)
            for name in names
        }
