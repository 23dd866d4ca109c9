"""Whose the long moments were in which nobody looked.

A hook that takes long in an iteration in which hooks are not timed one by one makes a
surprise: it is known how long that was and at which point of the iteration, and not who
it was. Once a hook is timed that takes about as long, at that point and about as often,
it was that one. What a busy machine held up is like nobody's calls and stays nobody's.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Callable, NamedTuple

LIKE = 0.15
"""Two are alike that differ by no more than this share of the longer one."""

FEWEST_ALIKE = 2
"""Timed calls of a hook that must be like a surprise: one may have been held up."""

_SPREADS = 2.0
"""By how many standard deviations of a Poisson process a hook may have taken long more
often than where it was timed."""

_MOST_KEPT, _MOST_CALLS = 128, 16
"""The newest ones, which bound memory and what is done with them."""

HICCUP_S = 0.01
"""A machine holds a thread up for as long now and then: some turns of its scheduler."""

_SEVERAL = 3
"""So many of them are no hiccups any more."""

_LOOP = frozenset({'data_wait', 'step'})
"""What the loop is in when it calls the hooks of an iteration."""


class _Surprise(NamedTuple):
    seconds: float
    beyond_s: float
    """The same without what is usual."""
    during: str
    """What was booked before it."""


class Surprises:
    """Keeps them until it is known whose they were.

    Args:
        find_timed: Gets a method; in how many iterations it has been timed.
    """

    def __init__(self, find_timed: Callable[[str], int]) -> None:
        self._find_timed = find_timed
        self.count = 0
        """How many there were."""
        self.last_s = 0.0
        """What the last of them took beyond the usual."""
        self.untold_s = 0.0
        """Of all of them, what :meth:`share` gave to nobody."""
        self._new: deque[_Surprise] = deque(maxlen=_MOST_KEPT)
        self._new_s = 0.0
        """What all new ones took beyond the usual, those let go included."""
        self._kept: deque[_Surprise] = deque(maxlen=_MOST_KEPT)
        self._unsearched: list[_Surprise] = []
        self._calls: dict[str, deque[float]] = {}
        """By method the newest of its long calls that were timed, seconds."""
        self._long: defaultdict[str, int] = defaultdict(int)
        """By method, how many those were in all."""
        self._given: defaultdict[str, int] = defaultdict(int)
        """By method, surprises that were its."""

    def add(self, seconds: float, beyond_s: float, during: str) -> None:
        """Add one.

        Args:
            seconds: How long the hooks took.
            beyond_s: The same without what they usually take.
            during: What the loop was in before.
        """
        self.count += 1
        self.last_s = beyond_s
        one = _Surprise(seconds, beyond_s, during)
        self._new.append(one)
        self._new_s += beyond_s
        if len(self._unsearched) < _SEVERAL:
            self._unsearched.append(one)

    def take_search(self) -> bool:
        """Whether those since it last said so call for a search for whose they are.

        One that is short may be a hiccup of the machine, and all iterations of a search
        are looked at: so it takes a long one, two alike, or several.
        """
        found = self._unsearched
        is_called_for = (
            len(found) >= _SEVERAL
            or any(one.beyond_s > HICCUP_S for one in found)
            or any(_are_alike(a, b) for a, b in zip(found, found[1:]))
        )
        if is_called_for:
            found.clear()
        return is_called_for

    def note_long(self, method: str, seconds: float) -> None:
        """A method took long where it was timed; its last word is what the loop is in
        when it calls it."""
        calls = self._calls.get(method)
        if calls is None:
            calls = self._calls[method] = deque(maxlen=_MOST_CALLS)
        calls.append(seconds)
        self._long[method] += 1

    def share(self, iterations: int) -> dict[str, float]:
        """Seconds by method of those since the last call; the others are kept.

        Args:
            iterations: Done so far.
        """
        if not self._new:
            return {}
        given, left = self._give(self._new, iterations, 0)
        self.untold_s += self._new_s - sum(given.values())
        self._new.clear()
        self._new_s = 0.0
        self._kept += left
        return given

    def settle(self, iterations: int) -> dict[str, float]:
        """Seconds by method of those that were kept; to be asked once, at the end."""
        # one is where it was not timed by no chance: it made us look for it
        return self._give(self._kept, iterations, 1)[0]

    def _give(
        self, surprises: Sequence[_Surprise], iterations: int, free: int
    ) -> tuple[dict[str, float], list[_Surprise]]:
        """What they are of whom, and those that are nobody's."""
        weights: list[dict[str, float]] = [{} for _ in surprises]
        for method in self._calls:
            alike = [self._count_alike(method, one) for one in surprises]
            count = sum(map(bool, alike))
            if not count:
                continue
            if count <= free + self._expect(method, max(alike), iterations):
                self._given[method] += count
                for weight, number in zip(weights, alike):
                    if number:
                        weight[method] = number
        given: defaultdict[str, float] = defaultdict(float)
        left = []
        for one, weight in zip(surprises, weights):
            for method, number in weight.items():
                given[method] += one.beyond_s * number / sum(weight.values())
            if not weight:
                left.append(one)
        return dict(given), left

    def _count_alike(self, method: str, one: _Surprise) -> float:
        """How many of a method's long calls are like one; 0 when they are too few."""
        during = method.rpartition(' ')[2]
        if one.during in _LOOP and one.during != during:
            return 0.0
        calls = self._calls[method]
        least_s, most_s = one.beyond_s * (1 - LIKE), one.seconds / (1 - LIKE)
        alike = sum(least_s <= call_s <= most_s for call_s in calls)
        if alike < FEWEST_ALIKE:
            return 0.0
        return self._long[method] * alike / len(calls)

    def _expect(self, method: str, alike: float, iterations: int) -> float:
        """How many more a method may have had where it was not timed."""
        timed = max(self._find_timed(method), 1)
        expected = alike / timed * max(iterations - timed, 0)
        return expected + _SPREADS * math.sqrt(expected) - self._given[method]


def _are_alike(one: _Surprise, other: _Surprise) -> bool:
    longer_s = max(one.beyond_s, other.beyond_s)
    is_alike = abs(one.beyond_s - other.beyond_s) <= LIKE * longer_s
    return is_alike and one.during == other.during
