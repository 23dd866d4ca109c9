"""Measures each validation: a time ledger of its own, over its own loader.

Nothing is touched until the first validation begins, and a training without one pays
nothing.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable

from mmengine.runner import BaseLoop

from mmgpu_hooks.hooks.guard import Guard
from mmgpu_hooks.hooks.loop_timer import loading_cpu_clock
from mmgpu_hooks.hooks.saves import mark_workers
from mmgpu_hooks.hooks.sources import Sources
from mmgpu_hooks.measure.clock import monotonic_s, process_cpu_s
from mmgpu_hooks.measure.host import read_run_delay_s
from mmgpu_hooks.measure.ledger import summarize_durations
from mmgpu_hooks.measure.loader.batches import count_tensors
from mmgpu_hooks.measure.loader.probe import LoaderProbe
from mmgpu_hooks.measure.loader.processes import sum_workers_meanwhile
from mmgpu_hooks.measure.loader.settings import read_loader_settings
from mmgpu_hooks.measure.memory import weigh_results
from mmgpu_hooks.measure.patches import Patches
from mmgpu_hooks.measure.save import Surroundings
from mmgpu_hooks.schema.recorded import Line, LoaderSettings, ValidationRecord

SOURCE = 'validation'
"""What the guard knows us by."""

_MEMORY_AT = 20
"""Batch at which the workers' memory is sampled: up to 20 ms, in a long loop only."""


class ValidationSource:
    """The validations of one run. No call of it raises.

    Args:
        runner: Whose validations are measured.
        guard: Switches this off when it fails.
        sources: Know the workers of the train loader, and the GPU.
        read_position: Gives iterations done and the epoch.
        write: Takes lines of the evidence.
    """

    def __init__(
        self,
        runner: Any,
        guard: Guard,
        sources: Sources,
        *,
        read_position: Callable[[], tuple[int, int]],
        write: Callable[[Line], None],
    ) -> None:
        self._runner = runner
        self._guard = guard
        self._sources = sources
        self._read_position = read_position
        self._write = write
        self._loop: _ValidationLoop | None = None
        self._began: dict[str, Any] | None = None
        """Where everything stood when the validation began that is on."""

    def begin(self) -> None:
        """A validation is about to begin."""
        # a logged validation resets the allocator's peak, and has one of its own
        self._guard.run('GPU memory', self._sources.gpu.begin_validation)
        self._guard.run(SOURCE, self._begin)

    def end(self) -> None:
        """It is over."""
        self._guard.run(SOURCE, self._end)
        self._guard.run('GPU memory', self._sources.gpu.end_validation)

    def _begin(self) -> None:
        self._began = None
        loop = getattr(self._runner, '_val_loop', None)
        if not isinstance(loop, BaseLoop):
            return
        loader = getattr(loop, 'dataloader', None)
        if self._loop is not None and self._loop.loader is not loader:
            self.close()
        if self._loop is None and hasattr(loader, '_get_iterator'):
            self._loop = _ValidationLoop(loader, self._guard)
        self._began = {
            'iteration': self._read_position()[0],
            'workers': mark_workers(self._sources.loader),
            'delay_s': read_run_delay_s(),
            'around': Surroundings.read(),
        }
        if self._loop is not None:
            self._loop.begin(getattr(loop, 'evaluator', None))

    def _end(self) -> None:
        began, self._began = self._began, None
        if began is None:
            return
        before_all, after_all = began['around'], Surroundings.read()
        wall_s = after_all.clock_s - before_all.clock_s
        delay_s = read_run_delay_s()
        if delay_s is not None and began['delay_s'] is not None:
            delay_s = max(delay_s - began['delay_s'], 0.0)
        figures: dict[str, Any] = {'loader': LoaderSettings()}
        if self._loop is not None:
            figures = self._loop.end()
        before, after = began['workers'], mark_workers(self._sources.loader)
        train_cpu_s = own_s = used_s = None
        if before is not None and after is not None:
            train_cpu_s = sum_workers_meanwhile(before, after, wall_s).cpu_s
        workers = figures.get('workers')
        if workers is not None and workers.count:
            own_s = workers.cpu_s
        elif figures['loader'].num_workers == 0:
            own_s = 0.0
        if own_s is not None and train_cpu_s is not None:
            used_s = own_s + train_cpu_s
        around, _ = after_all.since(before_all, used_s)
        self._write(
            ValidationRecord(
                iteration=began['iteration'],
                wall_s=wall_s,
                whole_cpu_s=after_all.own_cpu_s - before_all.own_cpu_s,
                run_delay_s=delay_s,
                train_workers_cpu_s=train_cpu_s,
                other_cpu_s=around.get('other_cpu_s'),
                **figures,
            )
        )

    def close(self) -> None:
        """Leave the loader as it was; a second call does nothing."""
        loop, self._loop, self._began = self._loop, None, None
        if loop is not None:
            loop.close()


class _ValidationLoop:
    """The waits and steps of validations that go through one loader.

    A step is all between a batch in hand and the next one asked for, however the loop
    names its iterations. What follows the last batch, the metric above all, is in
    neither.
    """

    def __init__(self, loader: Any, guard: Guard) -> None:
        self.loader = loader
        self._run = guard.run
        self._patches = Patches()
        self._load_cpu = loading_cpu_clock(loader)
        self._batches = 0
        """Of all validations."""
        self._started_s = 0.0
        """Of the iterator's making, which belongs to the first wait."""
        self._reset()
        self._probe = LoaderProbe(loader)
        self._probe.on_create_begin = self._create
        self._probe.on_create_end = self._created
        running = getattr(loader, '_iterator', None)
        if running is not None:
            self._probe.watch_running(running)
            self._follow(running)

    def _reset(self) -> None:
        self._waits_s: list[float] = []
        self._steps_s: list[float] = []
        """One less than waits while a step runs."""
        self._firsts_s: list[float] = []
        self._wait_cpu_s = self._cpu_s = 0.0
        self._step: tuple[float, float] | None = None
        """When the step that runs began, and the CPU until then."""
        self._contents: dict[str, Any] = {}
        self._metrics: Any = ()
        self._whole: int | None = None
        """Batches of a validation."""

    def _create(self) -> None:
        self._started_s = -monotonic_s()

    def _created(self, iterator: Any) -> None:
        self._started_s += monotonic_s()
        if iterator is not None:
            self._run(SOURCE, self._follow, iterator)

    def _follow(self, iterator: Any) -> None:
        """Time the waits of an iterator from now on."""
        next_data, find_iterator = type(iterator)._next_data, weakref.ref(iterator)
        run = self._run

        def timed() -> Any:
            live: Any = find_iterator()
            run(SOURCE, self._ask, live)
            is_first = not live._num_yielded
            cpu_s, begin_s = self._load_cpu(), monotonic_s()
            batch = next_data(live)
            wait_s, wait_cpu_s = monotonic_s() - begin_s, self._load_cpu() - cpu_s
            run(SOURCE, self._got, batch, is_first, wait_s, wait_cpu_s)
            return batch

        self._patches.set(iterator, '_next_data', timed)

    def begin(self, evaluator: Any) -> None:
        """A validation begins.

        Args:
            evaluator: Whose metrics keep results until its end.
        """
        # what workers that live on did since the last time
        self._probe.read()
        # what an error cut short belongs to no iteration
        self._reset()
        self._metrics = tuple(getattr(evaluator, 'metrics', ()))
        self._whole = read_loader_settings(self.loader).batches_per_epoch

    def _ask(self, iterator: Any) -> None:
        step, self._step = self._step, None
        if step is not None:
            self._steps_s.append(monotonic_s() - step[0])
            self._cpu_s += process_cpu_s() - step[1]
        if len(self._steps_s) == self._whole:
            kept = weigh_results(self._metrics)
            if kept is not None:
                found = {'result_bytes': kept.bytes, 'result_name': kept.name}
                self._contents.update(found)
        self._probe.before_wait(iterator)

    def _got(
        self, batch: Any, is_first: bool, wait_s: float, wait_cpu_s: float
    ) -> None:
        if is_first:
            wait_s, self._started_s = wait_s + self._started_s, 0.0
            self._firsts_s.append(wait_s)
        else:
            self._wait_cpu_s += wait_cpu_s
        self._waits_s.append(wait_s)
        self._batches += 1
        if not self._contents:
            tensors, size = count_tensors(batch)
            self._contents = {'batch_tensors': tensors, 'batch_bytes': size}
        if self._batches % _MEMORY_AT == 0:
            self._probe.read_memory()
            self._probe.follow_batches()
        # what we did ourselves is in no part
        self._step = monotonic_s(), process_cpu_s()

    def end(self) -> dict[str, Any]:
        """It is over.

        Returns:
            Fields of a :class:`~mmgpu_hooks.schema.ValidationRecord`.
        """
        # an error may have cut short the step of the last one
        steps_s = self._steps_s
        waits_s = self._waits_s[: len(steps_s)]
        figures: dict[str, Any] = {
            'loader': read_loader_settings(self.loader),
            'workers': self._probe.read(),
            **self._contents,
        }
        if steps_s:
            figures.update(
                iterations=len(steps_s),
                data_wait=summarize_durations(waits_s),
                step=summarize_durations(steps_s),
                iter=summarize_durations([*map(sum, zip(waits_s, steps_s))]),
                first_waits=len(self._firsts_s),
                first_wait_s=sum(self._firsts_s),
                data_wait_cpu_s=self._wait_cpu_s,
                process_cpu_s=self._cpu_s + self._wait_cpu_s,
            )
        return figures

    def close(self) -> None:
        """Leave the loader as it was."""
        self._patches.close()
        self._probe.close()
