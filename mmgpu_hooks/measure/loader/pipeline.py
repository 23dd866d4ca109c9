"""Times the transforms of a dataset's pipeline during one fetch of a batch.

For one batch now and then the transforms' classes get a timing ``__call__``, in a
training process without workers, too: an instance that is not in the pipeline, and
another thread, pass untimed.
"""

from __future__ import annotations

import contextlib
from threading import get_ident
from types import FunctionType
from typing import Any, Callable

from mmgpu_hooks.measure.clock import Clock, monotonic_s
from mmgpu_hooks.measure.patches import Patches

_DATASETS = ('dataset', 'datasets', '_mmgpu_dataset')
"""Names of the attributes by which wrapper datasets hold the wrapped dataset."""
_TRANSFORMS = (
    'pipeline',
    'transforms',
    'transform',
    'pre_transform',
    'branch_pipelines',
)
_MOST_OBJECTS = 512
_MOST_ENTRIES = 64

Costs = dict[str, float]
"""Type of a dict of seconds by transform class, without those of nested transforms."""


def find_transforms(dataset: Any) -> list[Any]:
    """Lists the transforms in the pipelines of a dataset and of the datasets it wraps.

    It goes through wrapped and concatenated datasets, and through transforms that
    hold others. Only instance attributes of known names are read, so no property
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


class _Call:
    """Running call of a transform, with the seconds of calls nested in it."""

    __slots__ = ('inner_s', 'transform')

    def __init__(self, transform: Any) -> None:
        self.transform = transform
        self.inner_s = 0.0
        """Seconds spent in other transforms that the transform called."""


class PipelineTimer:
    """Times every transform of a dataset between :meth:`start` and :meth:`stop`.

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
        self._running: list[_Call] = []
        """Stack of the transform calls that are running, the innermost last."""
        self._costs: Costs = {}
        self._thread = 0

    def start(self, dataset: Any) -> None:
        """Begins to time a dataset's transforms (30 us for eight, `stop` included).

        Args:
            dataset: Its transforms are searched anew: hooks may have changed them.
        """
        transforms = find_transforms(dataset)
        self._names = {
            id(transform): type(transform).__name__[:48] for transform in transforms
        }
        self._thread, self._running = get_ident(), []
        # all originals first: a class must not inherit another's timing
        originals: dict[type, Any] = {
            kind: kind.__call__ for kind in map(type, transforms)
        }
        for kind, original in originals.items():
            # some classes refuse it
            with contextlib.suppress(TypeError, AttributeError):
                self._patches.set(kind, '__call__', self._time(original))

    def stop(self) -> Costs:
        """Stops timing transforms: restores the ``__call__`` of their classes.

        Returns:
            Seconds of all that was timed so far, by class.
        """
        self._patches.close()
        self._names = {}
        return self._costs

    def _time(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __call__(transform: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            name, running = self._names.get(id(transform)), self._running
            if (
                name is None
                or get_ident() != self._thread
                # its class calls the parent class's __call__, timed as well
                or (running and running[-1].transform is transform)
            ):
                return original(transform, *args, **kwargs)
            running.append(_Call(transform))
            since = self._clock()
            try:
                return original(transform, *args, **kwargs)
            finally:
                elapsed = self._clock() - since
                inner_s = running.pop().inner_s
                if running:
                    running[-1].inner_s += elapsed
                own_s = max(elapsed - inner_s, 0.0)
                self._costs[name] = self._costs.get(name, 0.0) + own_s

        return __call__
