"""Switches on, and off again, the optimisations that ``optimize=...`` names."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

from mmgpu_hooks.measure.dataset_start import DatasetWatch
from mmgpu_hooks.optimize.refusal import RefusalError
from mmgpu_hooks.schema.figures import format_change
from mmgpu_hooks.schema.recorded import SparedTime
from mmgpu_hooks.schema.text import Text, phrase, quoted
from mmgpu_hooks.show.words import say

_CLASSES = {
    'param_groups': 'MergedGroups',
    'ema': 'ListedAverages',
    'small_tensors': 'SmallTensors',
    'history': 'GrowingHistories',
    'annotations': 'AnnotationCache',
    'resume': 'SampledResume',
}
"""Class name by optimisation; each key is also the name of the class's module."""


class Optimization(Protocol):
    """Interface of an active optimisation of a training."""

    changed: Text
    """Text for the log on what the optimisation changes in the training."""

    def close(self) -> None:
        """Ends the optimisation and restores everything; a second call does nothing."""


class Optimizations:
    """Optimisations of one training, each of them on, refused or switched off.

    Nothing in here raises, and what fails is taken back with one warning.

    Args:
        names: Of those that are asked for.
        logger: The Runner's.
    """

    def __init__(self, names: Iterable[str], logger: Any) -> None:
        self._names, self._logger = tuple(names), logger
        self._on: dict[str, Optimization] = {}
        self.refused: dict[str, str] = {}
        """Reason why an optimisation is not used, by its name."""
        self._has_loader = self._has_data_sets = False

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the active optimisations."""
        return tuple(self._on)

    @property
    def spared(self) -> dict[str, SparedTime]:
        """CPU seconds per optimised call, without and with optimisation, by name."""
        # one whose work is not in this thread's calls has none
        known = {
            name: getattr(active, 'spared', None) for name, active in self._on.items()
        }
        return {name: found for name, found in known.items() if found is not None}

    def begin_data_sets(self, watch: DatasetWatch) -> None:
        """Starts optimisations of data sets, before any data set is built.

        Args:
            watch: Sees them.
        """
        self._has_data_sets = True
        if 'annotations' in self._names:
            self._begin('annotations', watch, self._logger)

    def begin_loader(self, loader: Any) -> None:
        """Starts optimisations of the train loader, before its workers are started."""
        self._has_loader = True
        if 'small_tensors' in self._names:
            self._begin(
                'small_tensors', loader, partial(self._give_up, 'small_tensors')
            )

    def begin_training(self, runner: Any) -> None:
        """Starts all remaining optimisations, right before the train loop runs."""
        for name in self._names:
            if name == 'annotations':
                self._settle_annotations()
            elif name != 'small_tensors':
                self._begin(name, runner, partial(self._give_up, name))
            elif not self._has_loader:
                self._begin_late(runner.train_loop)

    def begin_epoch(self, book: Callable[[Callable[[], int]], None]) -> None:
        """Makes a resumed loop skip already trained batches without loading them.

        Args:
            book: Calls what skips batches, and books its time; it returns how many are
                still to be loaded.
        """
        resume: Any = self._on.get('resume')
        if resume is None:
            return
        try:
            resume.begin_epoch(book)
        except Exception as error:  # noqa: BLE001, training must not see it
            self._give_up('resume', error)

    def _settle_annotations(self) -> None:
        """Ends the annotation cache if no data set used it, once all are built."""
        name = 'annotations'
        if not self._has_data_sets:
            self._refuse(name, phrase('the data sets were built before'))
            return
        active: Any = self._on.get(name)
        reason = None if active is None else active.idle_reason
        if reason is not None:
            self._close(name, self._on.pop(name))
            self._refuse(name, reason)

    def _begin_late(self, loop: Any) -> None:
        """Starts loader optimisations for a loop that was built before the hook."""
        running = getattr(loop.dataloader, '_iterator', None)
        # iteration-based loops start workers in their constructor
        if running is not None or hasattr(loop, 'dataloader_iterator'):
            self._refuse('small_tensors', phrase('the workers were started before'))
        else:
            self.begin_loader(loop.dataloader)

    def _begin(self, name: str, *given: Any) -> None:
        try:
            module = importlib.import_module(f'mmgpu_hooks.optimize.{name}')
            begin = getattr(module, _CLASSES[name])
            self._on[name] = begin(*given)
        except RefusalError as refusal:
            self._refuse(name, refusal.said)
        except Exception as error:  # noqa: BLE001, training must not see it
            self._give_up(name, error)
        else:
            said = phrase(
                'GPUEfficiencyHook: optimize={name} is on: {changed}.',
                self._on[name],
                name=name,
            )
            self._logger.info(say(said))

    def _refuse(self, name: str, reason: Text) -> None:
        self.refused[name] = str(reason)
        said = phrase(
            'GPUEfficiencyHook: optimize={name} is not used: {reason}; training goes '
            'on as it was.',
            name=name,
            reason=reason,
        )
        self._logger.info(say(said))

    def _give_up(self, name: str, error: Exception) -> None:
        """Switches off an optimisation that failed, with one warning."""
        active = self._on.pop(name, None)
        if isinstance(error, RefusalError):
            reason = error.said
        else:
            words = ' '.join(str(error).split())
            reason = quoted(f'{type(error).__name__}: {words}')
        self._logger.warning(
            say(
                phrase(
                    'GPUEfficiencyHook: optimize={name} is taken back ({reason}); '
                    'training goes on without it.',
                    name=name,
                    reason=reason,
                )
            )
        )
        if active is not None:
            self._close(name, active)

    def _close(self, name: str, active: Optimization) -> None:
        try:
            active.close()
        except Exception as error:  # noqa: BLE001, training must not see it
            self._logger.warning(
                say(
                    phrase(
                        'GPUEfficiencyHook: optimize={name} could not be taken back '
                        'whole ({kind}: {error}).',
                        name=name,
                        kind=type(error).__name__,
                        error=error,
                    )
                )
            )

    def report(self) -> None:
        """Logs CPU seconds of each timed call, without and with its optimisation."""
        for name, found in self.spared.items():
            facts = dict(name=name, change=format_change(found.plain_s, found.ours_s))
            said = phrase(
                'GPUEfficiencyHook: optimize={name} gave {change} of CPU of the '
                'training thread for each call (median of {calls} of both ways).',
                found,
                **facts,
            )
            if found.ours_s >= found.plain_s:
                said = phrase(
                    'GPUEfficiencyHook: optimize={name} gave nothing here: {change} of '
                    'CPU of the training thread for each call (median of {calls} of '
                    'both ways).',
                    found,
                    **facts,
                )
            self._logger.info(say(said))

    def close(self) -> None:
        """Switches all optimisations off; a second call does nothing."""
        while self._on:
            self._close(*self._on.popitem())
