"""Times the transforms of a dataset's pipeline during one fetch."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from threading import get_ident
from types import FunctionType
from typing import Any, Callable, NamedTuple

from mmgpu_hooks.measure.clock import Clock, monotonic_s
from mmgpu_hooks.measure.patches import Patches

_DATASETS = ('dataset', 'datasets')
_TRANSFORMS = (
    'pipeline',
    'transforms',
    'transform',
    'pre_transform',
    'branch_pipelines',
)
_MOST_OBJECTS = 512
_MOST_ENTRIES = 64


class Place(NamedTuple):
    """An instance attribute that holds transforms."""

    owner: Any
    name: str


class CallCost(NamedTuple):
    """What one class of transforms took."""

    calls: int
    seconds: float
    """Wall clock, transforms that it called itself left out."""


def hide_frame(error: BaseException) -> None:
    """Take the frame that caught an error out of its traceback.

    For use right before a bare ``raise``, which from Python 3.11 on goes on with the
    traceback that the error then has; earlier versions show the frame.

    Args:
        error: As caught.
    """
    traceback = error.__traceback__
    if traceback is not None:
        error.__traceback__ = traceback.tb_next


def find_transforms(dataset: Any) -> list[Any]:
    """Find the transforms that a dataset applies, as :func:`search_pipeline` does."""
    return search_pipeline(dataset)[0]


def search_pipeline(dataset: Any) -> tuple[list[Any], list[Place]]:
    """Find the transforms that a dataset applies, and where they are held.

    It goes through wrapped and concatenated datasets, and through transforms that
    hold others. Only instance attributes of known names are looked at, so no property
    of the user's runs.

    Args:
        dataset: Any dataset.

    Returns:
        Each transform once; those without a ``__call__`` written in Python (plain
        functions too) and mere lists (``Compose``) are left out. And each attribute
        that holds some.
    """
    found: dict[int, Any] = {}
    places: list[Place] = []
    seen: set[int] = set()
    pending: list[tuple[Any, bool]] = [(dataset, False)]
    while pending and len(seen) < _MOST_OBJECTS:
        owner, is_transform = pending.pop()
        if id(owner) in seen:
            continue
        seen.add(id(owner))
        if isinstance(owner, dict):
            owner = list(owner.values())
        if isinstance(owner, (list, tuple)):
            pending += [(entry, is_transform) for entry in owner[:_MOST_ENTRIES]]
            continue
        if is_transform and _can_be_timed(type(owner)):
            found[id(owner)] = owner
        attributes = getattr(owner, '__dict__', {})
        for names, are_transforms in ((_DATASETS, False), (_TRANSFORMS, True)):
            for name in names:
                if name in attributes:
                    pending.append((attributes[name], are_transforms))
                    if are_transforms:
                        places.append(Place(owner, name))
    return list(found.values()), places


def _can_be_timed(kind: type) -> bool:
    return isinstance(kind.__call__, FunctionType) and kind.__name__ != 'Compose'


class PipelineTimer:
    """Times every transform between :meth:`start` and :meth:`stop`, in a worker.

    For that time the transforms' *classes* get a timing ``__call__``, in this process.
    So each transform stays the object it is: whoever tests its type, its attributes or
    its identity, or copies it, meets nothing of ours. Instances that are not in the
    pipeline, and other threads, pass untimed.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Clock = monotonic_s) -> None:
        self._clock = clock
        self._names: dict[int, str] = {}
        self._patches = Patches()
        self._running: list[list[Any]] = []
        self._costs: dict[str, list[float]] = {}
        self._thread = 0

    def start(self, dataset: Any) -> None:
        """Begin to time; with :meth:`stop` 30 us for eight transforms.

        Args:
            dataset: Its transforms are looked for anew: hooks may have changed them.
        """
        transforms = find_transforms(dataset)
        self._names = {id(one): type(one).__name__ for one in transforms}
        self._thread = get_ident()
        self._running = []
        self._costs = {}
        # all originals first: a class must not inherit another's timing
        kinds: dict[type, Any] = {type(one): type(one).__call__ for one in transforms}
        for kind, original in kinds.items():
            # some let nobody
            with contextlib.suppress(TypeError, AttributeError):
                self._patches.set(kind, '__call__', self._time(original))

    def stop(self) -> dict[str, CallCost]:
        """Give the classes their own ``__call__`` back.

        Returns:
            Costs by class name; empty when nothing was started.
        """
        self._patches.close()
        self._names = {}
        return {
            name: CallCost(int(calls), seconds)
            for name, (calls, seconds) in self._costs.items()
        }

    def _time(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __call__(transform: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            counted = self._enter(transform)
            try:
                return original(transform, *args, **kwargs)
            except BaseException as error:
                hide_frame(error)
                raise
            finally:
                if counted:
                    self._leave()

        return __call__

    def _enter(self, transform: Any) -> bool:
        name = self._names.get(id(transform))
        if name is None or get_ident() != self._thread:
            return False
        # its class calls the parent class's __call__, timed as well
        if self._running and self._running[-1][0] is transform:
            return False
        self._running.append([transform, name, 0.0, self._clock()])
        return True

    def _leave(self) -> None:
        _, name, inner_s, since = self._running.pop()
        elapsed = self._clock() - since
        if self._running:
            self._running[-1][2] += elapsed
        cost = self._costs.setdefault(name, [0, 0.0])
        cost[0] += 1
        cost[1] += max(elapsed - inner_s, 0.0)


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
        self._patches = Patches()
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
            original = vars(place.owner)[place.name]
            timed = _exchange(original, stand_ins)
            if timed is not original:
                self._patches.set(place.owner, place.name, timed)

    def stop(self) -> dict[str, CallCost]:
        """Give the attributes their own values back.

        Returns:
            Costs by class name; empty when nothing was started.
        """
        self._patches.close()
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
