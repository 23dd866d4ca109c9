"""Functions of a live run that leave stamps of what began and ended around them.

They run between two steps, where caches are cold and each Python function, list and
dictionary touched costs a microsecond and more. So each is one function, long as it is,
and does nothing but to note the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable

from mmgpu_hooks.evidence.ledger_parts import OF_LOOP, UNSPLIT, Point

_NO_POINT = ('', '')
"""The parts before and after a point that is not plain: none."""


class Stamps:
    """A tape of stamps, and what wraps a run's functions to leave some.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._stack: list[str] = ['other']
        """What is running, the innermost last."""
        self._tape: list[float | str] = []
        """When a part ended and which, one after the other, in the order of time.

        A tuple for each, or two lists, would be more cache misses; so is an
        ``array``, which grows more often.
        """
        self._lap_ends: list[float] = []
        """When iterations ended, whichever part that was in."""

    @property
    def is_nested(self) -> bool:
        """Whether the plain loop waits for something: hooks, a save, a validation."""
        # a hook that is timed always takes the plain loop's place while it runs
        return len(self._stack) > 1 or self._stack[0] not in OF_LOOP

    def book_calls(
        self,
        function: Callable[..., Any],
        labels: Mapping[str, str],
        on_error: Callable[[Exception], None],
    ) -> Callable[..., Any]:
        """``function``, with its calls booked to one hook.

        What passes between two hooks stays in plain ``hooks``. A call inside a
        validation, a save or another hook is part of that.

        Args:
            function: A method of a hook.
            labels: What to book a call as, by what runs between the hooks; see
                :class:`HookShares`. Where it names nothing, a call is only passed on.
            on_error: Gets a failure of the ledger, after which it stands still.
        """
        stack, clock = self._stack, self._clock
        note = self._tape.append

        # some are called for each hook in each iteration: all in one frame
        def booked(*args: Any, **kwargs: Any) -> Any:
            between = stack[-1]
            label = labels.get(between)
            if label is None:
                return function(*args, **kwargs)
            try:
                note(clock())
                note(between)
                stack[-1] = label
            except Exception as error:  # noqa: BLE001  # training must not see it
                on_error(error)
                return function(*args, **kwargs)
            result = function(*args, **kwargs)
            if stack[-1] is label:
                try:
                    note(clock())
                    note(label)
                    stack[-1] = between
                except Exception as error:  # noqa: BLE001  # training must not see it
                    on_error(error)
            return result

        return booked

    def book_points(
        self,
        function: Callable[..., Any],
        points: Mapping[Any, Point],
        otherwise: Callable[..., Any],
        on_error: Callable[[str, Exception], None],
    ) -> Callable[..., Any]:
        """``function``, which calls the hooks of a point, booked as ``hooks``.

        Args:
            function: Takes the name of a point first, as ``Runner.call_hook`` does.
            points: What is known of those points, by name.
            otherwise: Called instead at any other point, and where something is
                nested in the plain loop.
            on_error: Gets the source that failed and its error; it must see to it that
                ``points`` no longer holds what failed.
        """
        stack, clock = self._stack, self._clock
        note = self._tape.append

        def call_point(*args: Any, **kwargs: Any) -> Any:
            point = points.get(args[0] if args else kwargs.get('fn_name'))
            if point is None or self.is_nested:
                return otherwise(*args, **kwargs)
            following, between, before, after = point
            try:
                note(clock())
                note(stack[0])
                stack.append(between)
            except Exception as error:  # noqa: BLE001  # training must not see it
                on_error('ledger', error)
                return function(*args, **kwargs)
            for source, call in before:
                try:
                    call()
                except Exception as error:  # noqa: BLE001
                    on_error(source, error)
            result = function(*args, **kwargs)
            for source, call in after:
                try:
                    call()
                except Exception as error:  # noqa: BLE001
                    on_error(source, error)
            try:
                note(clock())
                note(stack[-1])
                del stack[1:]
                stack[0] = following
            except Exception as error:  # noqa: BLE001
                on_error('ledger', error)
            return result

        return call_point

    def book_plain_points(
        self,
        function: Callable[..., Any],
        plain: Mapping[str, tuple[str, str]],
        otherwise: Callable[..., Any],
        on_error: Callable[[str, Exception], None],
    ) -> Callable[..., Any]:
        """``function``, which calls the hooks of a point, booked as ``hooks``.

        For the points of every iteration at which nothing else is to be done: a third
        of what :meth:`book_points` costs there. What a hook leaves nested, it leaves
        to :meth:`book_points` to end.

        Args:
            function: Takes the name of a point first, as ``Runner.call_hook`` does.
            plain: Of those points, which part the loop is in when it calls them, and
                which afterwards.
            otherwise: Called instead at any other point, and in any other part.
            on_error: Gets the source that failed and its error; it must see to it that
                ``plain`` no longer holds what failed.
        """
        stack, clock, hooks = self._stack, self._clock, UNSPLIT
        note = self._tape.append

        # each name, call and container more may be a cache miss; an index from the end
        # is slower than one from the front
        def call_point(fn_name: Any, **kwargs: Any) -> Any:
            try:
                point = plain[fn_name]
            except KeyError:
                point = _NO_POINT
            if stack[0] != point[0]:
                return otherwise(fn_name, **kwargs)
            try:
                note(clock())
                note(point[0])
                stack[0] = hooks
            except Exception as error:  # noqa: BLE001  # training must not see it
                on_error('ledger', error)
                return function(fn_name, **kwargs)
            result = function(fn_name, **kwargs)
            try:
                note(clock())
                note(hooks)
                stack[0] = point[1]
            except Exception as error:  # noqa: BLE001
                on_error('ledger', error)
            return result

        return call_point

    def book_laps(
        self,
        between: list[int],
        is_due: Callable[[int, Any], None],
        on_error: Callable[[Exception], None],
    ) -> Callable[..., None]:
        """An ``after_train_iter`` at which an iteration ends.

        An iteration is what passed since the last one ended.

        Args:
            between: Two numbers of iterations; strictly between them nothing is due.
            is_due: Called with the iteration's number and batch at any other.
            on_error: Gets a failure of the ledger.
        """
        note, clock = self._lap_ends.append, self._clock

        def after_train_iter(
            runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
        ) -> None:
            try:
                note(clock())
            except Exception as error:  # noqa: BLE001  # training must not see it
                on_error(error)
            if not between[0] < batch_idx < between[1]:
                is_due(batch_idx, data_batch)

        return after_train_iter
