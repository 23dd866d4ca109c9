"""Times the transforms of a dataset's pipeline during one fetch."""

from __future__ import annotations

import contextlib
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
    """Find the transforms that a dataset applies.

    It goes through wrapped and concatenated datasets, and through transforms that
    hold others. Only instance attributes of known names are looked at, so no property
    of the user's runs.

    Args:
        dataset: Any dataset.

    Returns:
        Each transform once; those without a ``__call__`` written in Python (plain
        functions too) and mere lists (``Compose``) are left out.
    """
    found: dict[int, Any] = {}
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
    return list(found.values())


def _can_be_timed(kind: type) -> bool:
    return isinstance(kind.__call__, FunctionType) and kind.__name__ != 'Compose'


class PipelineTimer:
    """Times every transform between :meth:`start` and :meth:`stop`.

    For that time the transforms' *classes* get a timing ``__call__``, in this process.
    So each transform stays the object it is, with its type, attributes and identity.
    Instances that are not in the pipeline, and other threads, pass untimed.

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
            # some classes refuse it
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
