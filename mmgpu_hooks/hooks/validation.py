"""Measures each validation: a time ledger of its own, over its own loader.

Nothing is touched until the first validation begins, and a training without one pays
nothing.
"""

from __future__ import annotations

import math
from typing import Any, Callable

from mmengine.runner import BaseLoop

from mmgpu_hooks.hooks.guard import Guard
from mmgpu_hooks.hooks.loop_timer import LoopTimer, loading_cpu_clock
from mmgpu_hooks.hooks.saves import mark_workers
from mmgpu_hooks.hooks.sources import Sources
from mmgpu_hooks.measure.clock import monotonic_s, process_cpu_s
from mmgpu_hooks.measure.durations import fold_durations
from mmgpu_hooks.measure.host import read_run_delay_s
from mmgpu_hooks.measure.ledger import FIRST_WAIT, LAP, TimeLedger
from mmgpu_hooks.measure.loader.batches import count_tensors
from mmgpu_hooks.measure.loader.probe import LoaderProbe
from mmgpu_hooks.measure.loader.processes import fold_workers_meanwhile
from mmgpu_hooks.measure.loader.queue import WaitTimer
from mmgpu_hooks.measure.loader.settings import read_loader_settings
from mmgpu_hooks.measure.save import Surroundings
from mmgpu_hooks.schema import LoaderSettings, ValidationRecord
from mmgpu_hooks.schema.recorded import Line

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
        read_position: Tells iterations done and the epoch.
        write: Takes lines of the evidence.
        on_begin: Called when one begins; it must not raise.
    """

    def __init__(
        self,
        runner: Any,
        guard: Guard,
        sources: Sources,
        *,
        read_position: Callable[[], tuple[int, int]],
        write: Callable[[Line], None],
        on_begin: Callable[[], None],
    ) -> None:
        self._runner = runner
        self._guard = guard
        self._sources = sources
        self._on_begin = on_begin
        self._read_position = read_position
        self._write = write
        self._loader: Any = None
        self._loop: _ValidationLoop | None = None
        self._surroundings: Surroundings | None = None
        self._is_on = False
        self._workers_before: Any = None
        self._position = (0, 0)
        self._began: tuple[float, float, float | None] = (0.0, 0.0, None)

    def watch(self, timer: LoopTimer) -> None:
        """Be called where validations begin and end."""
        timer.before['before_val'] = (self.begin,)
        timer.after['after_val'] = (self.end,)

    def begin(self) -> None:
        """A validation is about to begin."""
        # a logged validation resets the allocator's peak, and has one of its own
        self._guard.run('GPU memory', self._sources.gpu.begin_validation)
        self._on_begin()
        self._guard.run(SOURCE, self._begin)

    def end(self) -> None:
        """It is over."""
        self._guard.run(SOURCE, self._end)
        self._guard.run('GPU memory', self._sources.gpu.end_validation)

    def _begin(self) -> None:
        self._is_on = False
        loop = getattr(self._runner, '_val_loop', None)
        if not isinstance(loop, BaseLoop):
            return
        loader = getattr(loop, 'dataloader', None)
        if self._loop is None or loader is not self._loader:
            self.close()
            self._loader = loader
            if hasattr(loader, '_get_iterator'):
                self._loop = _ValidationLoop(loader, self._guard)
        if self._surroundings is None:
            self._surroundings = Surroundings()
        self._position = self._read_position()
        self._workers_before = mark_workers(self._sources.loader)
        self._surroundings.begin()
        self._began = monotonic_s(), process_cpu_s(), read_run_delay_s()
        self._is_on = True
        if self._loop is not None:
            self._loop.begin()

    def _end(self) -> None:
        was_on, self._is_on = self._is_on, False
        if not was_on or self._surroundings is None:
            return
        began_s, began_cpu_s, began_delay_s = self._began
        wall_s, cpu_s = monotonic_s() - began_s, process_cpu_s() - began_cpu_s
        delay_s = read_run_delay_s()
        if began_delay_s is not None and delay_s is not None:
            delay_s = max(delay_s - began_delay_s, 0.0)
        unknown: dict[str, str] = {}
        figures: dict[str, Any] = {'loader': LoaderSettings()}
        if self._loop is None:
            unknown['iterations'] = (
                'the loop has no DataLoader of PyTorch as its dataloader'
            )
        else:
            figures = self._loop.end()
            if not figures.get('iterations'):
                unknown['iterations'] = 'the loop took no batch of its dataloader'
        before, after = self._workers_before, mark_workers(self._sources.loader)
        train_cpu_s = None
        if before is None or after is None:
            unknown['train_workers'] = 'the train loader is not watched'
        else:
            seen = fold_workers_meanwhile(before, after, wall_s)
            train_cpu_s = seen.cpu_s
            figures.update(train_workers=seen.count, train_workers_cpu_s=train_cpu_s)
        own_s = 0.0 if figures['loader'].num_workers == 0 else None
        if figures.get('workers') is not None and figures['workers'].count:
            own_s = figures['workers'].cpu_s
        used_s = None if own_s is None or train_cpu_s is None else own_s + train_cpu_s
        around, why = self._surroundings.end(used_s)
        if 'strangers_cpu_s' in why:
            unknown['strangers_cpu_s'] = why['strangers_cpu_s']
        iteration, epoch = self._position
        self._write(
            ValidationRecord(
                iteration=iteration,
                epoch=epoch,
                wall_s=wall_s,
                whole_cpu_s=cpu_s,
                run_delay_s=delay_s,
                strangers_cpu_s=around.get('strangers_cpu_s'),
                unknown=unknown,
                **figures,
            )
        )

    def close(self) -> None:
        """Leave the loader as it was; a second call does nothing."""
        loop, self._loop, self._loader = self._loop, None, None
        self._is_on = False
        if loop is not None:
            loop.close()
        surroundings, self._surroundings = self._surroundings, None
        if surroundings is not None:
            surroundings.close()


class _ValidationLoop:
    """The waits and steps of validations that go through one loader.

    A step is all between a batch in hand and the next one asked for, however the loop
    names its iterations. What follows the last batch, the metric above all, is in
    neither.
    """

    def __init__(self, loader: Any, guard: Guard) -> None:
        self._loader = loader
        self._batches = 0
        """Of all validations."""
        self._cpu_s = self._booked_cpu_s = 0.0
        self._contents: dict[str, Any] = {}
        self._ledger = TimeLedger(monotonic_s, 'other')
        self._waits = WaitTimer(self._ledger, loading_cpu_clock(loader))
        self._waits.before = guard.wrap(SOURCE, self._ask)
        self._waits.after = guard.wrap(SOURCE, self._got)
        self._follow = guard.wrap(SOURCE, self._waits.follow)
        self._probe = LoaderProbe(loader, lambda: self._batches)
        self._probe.on_create_begin = lambda: self._ledger.push(FIRST_WAIT)
        self._probe.on_create_end = self._created
        running = getattr(loader, '_iterator', None)
        if running is not None:
            self._probe.watch_running(running)
            self._waits.follow(running)

    def _created(self, iterator: Any) -> None:
        self._ledger.pop(FIRST_WAIT)
        if iterator is not None:
            self._follow(iterator)

    def begin(self) -> None:
        """A validation begins."""
        # what workers that live on did since the last time
        self._probe.read()
        ledger, now_s = self._ledger, self._ledger.clock()
        # what an error cut short belongs to no iteration
        ledger.tape.extend((now_s, 'other', now_s, LAP))
        ledger.running[:] = ['other']
        ledger.take()
        self._cpu_s, self._contents = 0.0, {}

    def _ask(self) -> None:
        ledger, cpu_s = self._ledger, process_cpu_s()
        if ledger.running[0] == 'step':
            now_s = ledger.clock()
            ledger.tape.extend((now_s, 'step', now_s, LAP))
            ledger.running[0] = 'other'
            self._cpu_s += cpu_s - self._booked_cpu_s
        self._booked_cpu_s = cpu_s
        self._probe.ask()

    def _got(self, batch: Any) -> None:
        self._probe.got()
        if self._ledger.tape[-1] == FIRST_WAIT:
            self._booked_cpu_s = process_cpu_s()
        self._batches += 1
        if not self._contents:
            tensors, size = count_tensors(batch)
            self._contents = {'batch_tensors': tensors, 'batch_bytes': size}
        if self._batches % _MEMORY_AT == 0:
            self._probe.read_memory()
        # what we did ourselves is in no part
        self._ledger.tape.extend((self._ledger.clock(), 'other'))
        self._ledger.running[0] = 'step'

    def end(self) -> dict[str, Any]:
        """It is over.

        Returns:
            Fields of a :class:`~mmgpu_hooks.schema.ValidationRecord`.
        """
        window = self._ledger.take()
        figures: dict[str, Any] = {
            'loader': read_loader_settings(self._loader),
            'workers': self._probe.read(),
            **self._contents,
        }
        if window.iters_s:
            figures.update(
                iterations=len(window.iters_s),
                data_wait=fold_durations(window.waits_s),
                step=fold_durations(window.steps_s),
                iter=fold_durations(window.iters_s),
                first_waits=len(window.firsts),
                first_wait_s=math.fsum(window.waits_s[i] for i in window.firsts),
                data_wait_cpu_s=window.wait_cpu_s,
                process_cpu_s=self._cpu_s,
            )
        return figures

    def close(self) -> None:
        """Leave the loader as it was."""
        self._waits.close()
        self._probe.close()
