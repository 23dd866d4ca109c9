"""Iterations that are looked at closely, one of 24, and the others at little cost.

Between two steps caches are cold, and each Python function entered costs a microsecond
and more. So hooks are timed one by one, the loader's queue is looked at and the CPU
clock is read in some iterations only, drawn by lot: no period of the training's own
can beat with them.
"""

from __future__ import annotations

import random
from typing import Any, Callable

from mmengine.device import get_device
from mmengine.hooks import RuntimeInfoHook

from mmgpu_hooks.evidence.hook_shares import LONG_CALLS, labels_of
from mmgpu_hooks.evidence.ledger import TimeLedger
from mmgpu_hooks.evidence.ledger_parts import EXACT, LOOKED, UNSPLIT, Moments, Point
from mmgpu_hooks.hooks.followed_hooks import FollowedHooks, HookMethod
from mmgpu_hooks.hooks.guard import Guard
from mmgpu_hooks.hooks.instance_patches import InstancePatches
from mmgpu_hooks.hooks.own_points import own_points

BEFORE, AFTER = 'before_train_iter', 'after_train_iter'

_DURING = {BEFORE: 'data_wait', AFTER: 'step'}
"""Part that the plain loop is in when it calls a point."""

FIRST_LOOKS = 8
"""Iterations at the begin that are all looked at."""
_FEWEST_APART, _MOST_APART = 16, 32
_MOST_SEARCHED, _FREE_SEARCHES, _SEARCHED_SHARE = 2000, 3, 0.1
"""A search's iterations; searches that there are in any case; of all iterations, the
share that is searched beyond that: a busy machine lets any hook wait now and then."""
_ALIKE = 0.5
"""Of what surprised, the share that a call must take to be the reason."""


class CloseLooks:
    """Says what happens at the two hook points of an iteration.

    Args:
        ledger: Gets what is seen of hooks and waits.
        guard: Switches off the split by hook when it fails.
        on_error: Gets the source that failed, and its error.
    """

    def __init__(
        self,
        ledger: TimeLedger,
        guard: Guard,
        on_error: Callable[[str, Exception], None],
    ) -> None:
        self._ledger = ledger
        self._guard = guard
        self._on_error = on_error
        self.points: dict[Any, Point] = {}
        """By name; the same object all along. Empty once it is closed."""
        self.plain: dict[Any, tuple[str, str]] = {}
        """Of those at which nothing is to be done, the parts before and after."""
        self._begin_step: Moments = ()
        self._end_step: Moments = ()
        self._ask: Moments = (('ledger', ledger.begin_wait),)
        self._got: Moments = (('ledger', ledger.end_wait),)
        self._lots = random.Random(0)
        self._left = 0
        self._between = self._next = LOOKED
        self._is_open = False
        self._is_searching = False
        self._searches = self._searched = 0
        self._always = InstancePatches()
        self._followed = FollowedHooks(ledger, self._note_error)
        self._now = InstancePatches()
        self._is_timing = False
        """Whether all of those that are sampled are timed now."""
        self._watched: set[int] = set()
        self._sampled: list[HookMethod] = []

    def watch_step(
        self, source: str, begin: Callable[[], Any], end: Callable[[], Any]
    ) -> None:
        """Call ``begin`` before each step is enqueued and ``end`` after it was."""
        self._begin_step += ((source, begin),)
        self._end_step += ((source, end),)

    def watch_wait(
        self, source: str, ask: Callable[[], Any], got: Callable[[], Any]
    ) -> None:
        """Call ``ask`` before a wait that is looked at and ``got`` after it."""
        self._ask += ((source, ask),)
        self._got += ((source, got),)

    def drop(self, source: str) -> None:
        """Call no longer what belongs to a source that failed."""
        for name in ('_begin_step', '_end_step', '_ask', '_got'):
            calls: Moments = getattr(self, name)
            setattr(self, name, tuple(call for call in calls if call[0] != source))
        if self.points:
            self._begin(self._between) if self._left else self._rest()

    def draw_distance(self) -> int:
        """Iterations from one look to the next."""
        return self._lots.randint(_FEWEST_APART, _MOST_APART)

    def watch_hooks(self, hooks: list[Any]) -> None:
        """Time those that joined since the last call: they may do so at any time."""
        for hook in hooks:
            # whoever has no attributes of its own is in plain hooks
            if id(hook) not in self._watched and hasattr(hook, '__dict__'):
                self._watched.add(id(hook))
                self._guard.run('ledger by hook', self._watch_hook, hook)

    def _watch_hook(self, hook: Any) -> None:
        hook_name = type(hook).__name__
        for name in own_points(hook):
            # reading the losses waits for the device: that is the step's own time
            is_loss = name == AFTER and isinstance(hook, RuntimeInfoHook)
            is_loss &= get_device() != 'cpu'
            if name in (BEFORE, AFTER) and not is_loss:
                label = f'{hook_name} {len(self._watched)} {_DURING[name]}'
                self._sample([HookMethod(hook, name, label)])
            else:
                labels = labels_of('step' if is_loss else hook_name, True)
                self._time(self._always, hook, name, labels)

    def _sample(self, methods: list[HookMethod]) -> None:
        self._sampled += methods
        self._is_timing &= not methods

    def _note_error(self, error: Exception) -> None:
        self._on_error('ledger', error)

    def _time(
        self, patches: InstancePatches, hook: Any, name: str, labels: dict[str, str]
    ) -> None:
        # whatever is there by now, somebody's wrapper perhaps
        method = getattr(hook, name)
        booked = self._ledger.book_calls(method, labels, self._note_error)
        patches.set(hook, name, booked)

    def request(self, iterations: int = 1, is_special: bool = False) -> None:
        """Look at the iterations from the next one on, so many at least.

        Args:
            iterations: How many.
            is_special: The next one is not like the others, and stands for itself.
        """
        between = EXACT if is_special else self._next
        if self._left:
            # the one that is looked at is not over yet
            self._left = max(self._left, iterations + 1)
            self._next = between
        else:
            self._left = iterations
            self._follow_long()
            self._begin(between)

    def begin(self) -> None:
        """Look at the first iterations, one and all."""
        self._is_open = True
        self._left = FIRST_LOOKS
        self._begin(LOOKED)

    def begin_epoch(self) -> None:
        """Look at the first wait of an epoch, which begins, and at its iteration."""
        self.request()
        for source, call in self._ask:
            try:
                call()
            except Exception as error:  # noqa: BLE001  # training must not see it
                self._on_error(source, error)
        self._expect()

    def _follow_long(self) -> None:
        """Follow those that take long, or did so where they were searched for."""
        if not self._is_searching and not self._ledger.shares.long:
            return
        found = [one for one in self._sampled if self._takes_long(one.label)]
        for one in found:
            self._sampled.remove(one)
            self._time_none()
            self._followed.add(one)
        if found and self._is_searching:
            self._is_searching = False
            self._left = min(self._left, 1)

    def _takes_long(self, method: str) -> bool:
        shares = self._ledger.shares
        if shares.long[method] >= LONG_CALLS:
            return True
        # on a busy machine any call may take long now and then
        enough_s = _ALIKE * shares.surprises.last_s
        return self._is_searching and shares.longest_s.get(method, 0.0) > enough_s

    def _begin(self, between: str) -> None:
        if not self._is_open:
            return
        self._between, self._next = between, LOOKED
        self._guard.run('ledger by hook', self._time_hooks)
        # after an iteration that is special more batches are ready than usual
        asks = () if between == EXACT else self._ask
        end = (('ledger', self._end_look), *asks)
        self._set(
            Point('step', between, (), self._begin_step),
            Point('data_wait', between, self._end_step, end),
        )

    def _set(self, before: Point, after: Point) -> None:
        if not self._is_open:
            return
        for name, point in ((BEFORE, before), (AFTER, after)):
            self.points[name] = point
            if not (point.before or point.after) and point.between is UNSPLIT:
                self.plain[name] = (_DURING[name], point.following)
            else:
                self.plain.pop(name, None)

    def _time_none(self) -> None:
        self._is_timing = False
        self._now.close()

    def _time_hooks(self) -> None:
        if self._is_timing:
            return
        self._time_none()
        for one in self._sampled:
            labels = labels_of(one.hook_name, False, one.label)
            self._time(self._now, one.hook, one.point, labels)
        self._is_timing = True

    def _end_look(self) -> None:
        """An iteration that was looked at is over, but for its wait."""
        self._ledger.end_look()
        self._left -= 1
        is_special = self._between == EXACT
        if self._left > 0:
            self._follow_long()
            self._begin(self._next)
        else:
            self._time_none()
            self._rest()
        # after a special one nobody asked
        if not is_special:
            self._expect()

    def _expect(self) -> None:
        """The wait that begins is looked at."""
        if self.points:
            got = (*self._got, ('ledger', self._forget_wait))
            between = self._between if self._left else UNSPLIT
            self._set(Point('step', between, got, self._begin_step), self.points[AFTER])

    def _forget_wait(self) -> None:
        if not self._left:
            self._rest()

    def _rest(self) -> None:
        self._set(
            Point('step', after=self._begin_step),
            Point('data_wait', before=self._end_step),
        )

    def search(self, iterations: int) -> None:
        """Look for whoever took long in an iteration that was not looked at.

        Whoever was found before and takes long no more is given up.

        Args:
            iterations: Done so far: what comes every so often is found in twice that.
        """
        shares = self._ledger.shares
        shares.iterations = iterations
        self._sample(self._followed.release(iterations))
        is_called_for = shares.surprises.take_search()
        if self._is_searching:
            self._follow_long()
            if not self._left:
                self._is_searching = False
        elif is_called_for and self._may_search(iterations):
            most = min(2 * iterations, _MOST_SEARCHED)
            self._searches += 1
            self._searched += most
            self._is_searching = True
            shares.longest_s.clear()
            self.request(most)

    def _may_search(self, iterations: int) -> bool:
        is_free = self._searches < _FREE_SEARCHES
        return is_free or self._searched < _SEARCHED_SHARE * iterations

    def close(self) -> None:
        """Leave every hook as it was; a second call does nothing."""
        self._is_open = False
        self.points.clear()
        self.plain.clear()
        # what they would stamp from here on nobody takes off the tape
        self._time_none()
        self._followed.close()
        self._always.close()
