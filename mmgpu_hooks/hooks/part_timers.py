"""Times the parts of a validation or test by replacing methods of loop and metrics.

For as long as it lasts, on the instances that it calls: the model's ``val_step``, the
evaluator's and its metrics' methods, the Runner's ``save_checkpoint``. Of several ranks
also functions of ``torch.distributed``: there a rank waits for the others, whatever
module of MMEngine or MMDetection calls them.

A metric may pickle itself for processes of its own: a timer pickles as the method that
it stands for.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any

from mmgpu_hooks.measure.patches import Patches
from mmgpu_hooks.measure.validation_parts import (
    FORWARD,
    RANK_WAIT,
    SAVE_CALL,
    PartCall,
    TimedCall,
    ValidationParts,
)

_WAITS = ('barrier', 'broadcast', 'broadcast_object_list')
_STEPS = ('val_step', 'test_step')
_METHODS = {'process': 'process', 'evaluate': 'gather', 'compute_metrics': 'metric'}
"""Names of timed methods of metrics and evaluators, each with its part of validation.

Calls of other timed methods inside a part are not in it."""


class PartTimers:
    """Times a validation's parts by replaced methods, which :meth:`close` restores.

    What cannot be replaced is not told apart from what calls it.

    Args:
        runner: That validates.
        evaluator: Of the loop.
        world_size: Ranks.
    """

    def __init__(self, runner: Any, evaluator: Any, world_size: int) -> None:
        self._runner, self._evaluator = runner, evaluator
        self._world_size = world_size
        self._patches = Patches()

    def open(self, parts: ValidationParts) -> None:
        """Begins to time a validation's parts: replaces methods such as ``val_step``.

        Args:
            parts: Gets the time.
        """
        self.close()
        for name in _STEPS:
            self._time(parts, FORWARD, self._runner.model, name)
        self._time(parts, SAVE_CALL, self._runner, 'save_checkpoint')
        metrics = tuple(getattr(self._evaluator, 'metrics', ()))
        owners: list[tuple[Any, str | None]] = [(self._evaluator, None)]
        owners += zip(metrics, name_metrics(metrics))
        for owner, metric in owners:
            for name, part in _METHODS.items():
                self._time(parts, PartCall(part, metric), owner, name)
        distributed = sys.modules.get('torch.distributed')
        if self._world_size > 1 and distributed is not None:
            for name in _WAITS:
                self._time(parts, RANK_WAIT, distributed, name)

    def _time(
        self, parts: ValidationParts, call: PartCall, owner: Any, name: str
    ) -> None:
        function = getattr(owner, name, None)
        if not callable(function):
            return
        # what takes no attributes is timed with what calls it
        with contextlib.suppress(TypeError, AttributeError):
            self._patches.set(owner, name, TimedCall(parts, call, function))

    def close(self) -> None:
        """Restores the methods that were replaced for timing; may be called twice."""
        self._patches.close()


def name_metrics(metrics: Iterable[Any]) -> list[str]:
    """Returns a name for each metric: its class, numbered if several share a class."""
    seen, names = Counter[str](), list[str]()
    for metric in metrics:
        name = type(metric).__name__
        seen[name] += 1
        names.append(name if seen[name] == 1 else f'{name} ({seen[name]})')
    return names
