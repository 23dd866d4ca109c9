"""Times the transforms of a pipeline that runs in the training process itself."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from threading import get_ident
from typing import Any, Callable

from mmgpu_hooks.measure.clock import Clock, monotonic_s
from mmgpu_hooks.measure.loader.frames import hide_frame
from mmgpu_hooks.measure.loader.pipeline import CallCost, Place, search_pipeline

_SEQUENCE = ('__len__', '__getitem__', '__contains__', '__bool__')


class LocalPipelineTimer:
    """Times every transform between :meth:`start` and :meth:`stop`.

    In the training process no class is touched. For that time the attributes that
    hold transforms (``Compose.transforms``) hold stand-ins for them, each attribute
    exchanged by one assignment: whatever a signal handler raises, :meth:`stop` finds
    all that was exchanged. A stand-in passes for what it stands for: of its type by
    ``isinstance``, with its attributes, and copied or pickled as the transform alone.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Clock = monotonic_s) -> None:
        self._clock = clock
        self._exchanged: list[tuple[Place, Any, Any]] = []
        # seconds in inner transforms, of those that run
        self._running: list[float] = []
        self._costs: dict[str, list[float]] = {}
        self._thread = 0

    def start(self, dataset: Any) -> None:
        """Begin to time; with :meth:`stop` 30 us for eight transforms.

        Args:
            dataset: Its transforms are looked for anew: hooks may have changed them.
        """
        transforms, places = search_pipeline(dataset)
        self._thread = get_ident()
        self._running = []
        self._costs = {}
        stand_ins = {
            id(one): _stand_in(one, self._call)
            for one in transforms
            if not any(hasattr(type(one), name) for name in _SEQUENCE)
        }
        for place in places:
            original = place.attributes[place.name]
            timed = _exchange(original, stand_ins)
            if timed is not original:
                # noted first: a signal handler may raise right after it is set
                self._exchanged.append((place, original, timed))
                place.attributes[place.name] = timed

    def stop(self) -> dict[str, CallCost]:
        """Give the attributes their own values back.

        Returns:
            Costs by class name; empty when nothing was started.
        """
        while self._exchanged:
            place, original, timed = self._exchanged[-1]
            if place.attributes.get(place.name) is timed:  # else replaced by now
                place.attributes[place.name] = original
            self._exchanged.pop()
        return {
            name: CallCost(int(calls), seconds)
            for name, (calls, seconds) in self._costs.items()
        }

    def _call(self, transform: Any, args: Any, kwargs: Any) -> Any:
        if get_ident() != self._thread:
            return transform(*args, **kwargs)
        self._running.append(0.0)
        since = self._clock()
        try:
            return transform(*args, **kwargs)
        except BaseException as error:
            hide_frame(error)
            raise
        finally:
            elapsed = self._clock() - since
            inner_s = self._running.pop()
            if self._running:
                self._running[-1] += elapsed
            cost = self._costs.setdefault(type(transform).__name__, [0, 0.0])
            cost[0] += 1
            cost[1] += max(elapsed - inner_s, 0.0)


def _exchange(value: Any, stand_ins: dict[int, Any], depth: int = 4) -> Any:
    """The value with stand-ins in it; itself when there is nothing to exchange."""
    kind = type(value)
    if kind not in (dict, list, tuple) or not depth:
        return stand_ins.get(id(value), value)
    entries = list(value.values() if kind is dict else value)
    parts = [_exchange(one, stand_ins, depth - 1) for one in entries]
    if all(part is one for part, one in zip(parts, entries)):
        return value
    return dict(zip(value, parts)) if kind is dict else kind(parts)


def _stand_in(transform: Any, call: Callable[[Any, Any, Any], Any]) -> Any:
    kind = _IterableStandIn if hasattr(type(transform), '__iter__') else _StandIn
    return kind(transform, call)


def _itself(transform: Any) -> Any:
    return transform


class _StandIn:
    """Runs a transform and has it timed; everything else is the transform's."""

    __slots__ = ('_mmgpu_call', '_mmgpu_transform')

    def __init__(self, transform: Any, call: Callable[[Any, Any, Any], Any]) -> None:
        object.__setattr__(self, '_mmgpu_transform', transform)
        object.__setattr__(self, '_mmgpu_call', call)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._mmgpu_call(self._mmgpu_transform, args, kwargs)
        except BaseException as error:
            hide_frame(error)
            raise

    @property  # type: ignore[misc]  # typeshed has a variable there
    def __class__(self) -> Any:
        return type(self._mmgpu_transform)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mmgpu_transform, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._mmgpu_transform, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._mmgpu_transform, name)

    def __eq__(self, other: object) -> bool:
        mine = self._mmgpu_transform
        theirs = other._mmgpu_transform if type(other) is type(self) else other
        return bool(mine is theirs or mine == theirs)

    def __hash__(self) -> int:
        return hash(self._mmgpu_transform)

    def __repr__(self) -> str:
        return repr(self._mmgpu_transform)

    def __copy__(self) -> Any:
        return copy.copy(self._mmgpu_transform)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _itself, (self._mmgpu_transform,)


class _IterableStandIn(_StandIn):
    __slots__ = ()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._mmgpu_transform)
