"""Times a Runner's train loop: hooks by class, checkpoint saves, waits for data.

Calls nest. ``ledger.running`` is the stack of what runs, the innermost last; a stamp
gives the time since the last one to what it names. An iteration at whose end a
checkpoint is saved, and the stack beside it::

    call_hook('after_train_iter')                  step
      RuntimeInfoHook.after_train_iter             step, RuntimeInfoHook
        stamp -> RuntimeInfoHook
      GPUEfficiencyHook.after_train_iter           step, GPUEfficiencyHook
        stamp -> LAP: the iteration ends here
        stamp -> GPUEfficiencyHook
      CheckpointHook.after_train_iter              step, CheckpointHook
        runner.save_checkpoint()                   step, CheckpointHook, SAVE
          stamp -> CheckpointHook: until the save
          call_hook('before_save_checkpoint')      passed on untimed: it is the save's
          stamp -> SAVE
        stamp -> CheckpointHook: what followed the save
    the hooks are done: FOLLOWING says             loop
    data loader's next                             loop, data_wait
    call_hook('before_train_iter') ...             loop, each hook in turn
    train_step()                                   step

Inside `SAVE` and `VALIDATION_PART` hooks are called and not timed, since all the time
there is the outer part's. A hook that runs an iteration inside itself only adds to the
stack; what an error left open is cut off where the next iteration begins.

MMEngine's ``call_hook`` is a loop of a few lines over the Runner's hooks, the same in
0.7 to 0.10, in `FlexibleRunner` and in the maintained forks. Where a Runner's is
MMEngine's own, the same loop runs here with one stamp after each hook. Any other is
timed as a whole.

Hooks that inherit both of MMEngine's empty methods of an iteration are skipped. The
hooks of a Runner that is timed as a whole are ``(unattributed)``.

``step`` excludes ``before_train_iter``: the hooks that run there are hooks, so the
parts add up without an overlap. Where the model is not on the CPU, all of
``RuntimeInfoHook.after_train_iter`` belongs to the step: reading the losses is where
the host waits for the device.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any, Callable, NamedTuple, Optional

from mmengine.hooks import Hook, RuntimeInfoHook
from mmengine.runner import FlexibleRunner, IterBasedTrainLoop

from mmgpu_hooks.measure.clock import monotonic_s, process_cpu_s, thread_cpu_s
from mmgpu_hooks.measure.ledger import TimeLedger
from mmgpu_hooks.measure.loader.waits import CPU_EVERY, WaitTimer
from mmgpu_hooks.measure.loop_listener import NO_LISTENER, LoopListener
from mmgpu_hooks.measure.patches import Patches
from mmgpu_hooks.schema.recorded import UNATTRIBUTED

SAVE = 'checkpoint_save'
VALIDATION_PART = 'validation'
"""Name of the part of training time that validations take, their hooks included."""

FOLLOWING: Mapping[str, str] = {
    'before_train_iter': 'step',
    'after_train_iter': 'loop',
    'after_train': 'other',
}

IDLE_POINTS = {'before_train_iter': '_before_iter', 'after_train_iter': '_after_iter'}
"""Hook methods around an iteration, with the `Hook` method that each calls."""

PointCalls = Mapping[str, tuple[Callable[[], Any], ...]]
"""Type of the functions to call after all hooks of a hook point, by point."""

_Point = tuple[Collection[type], Optional[str], tuple[Callable[[], Any], ...]]
"""Type of the plan for a hook point: hooks to skip, next timed part, callbacks.

A plain tuple: it is taken apart at each hook point of each iteration."""

_ELSEWHERE: _Point = ((), None, ())


class HookTimer:
    """Makes the function that replaces a Runner's ``call_hook`` and times each hook.

    Args:
        runner: The runner.
        ledger: Gets the seconds.
        listener: Hears of validations: right before the hooks of ``before_val`` and
            right after those of ``after_val``.
        after: What to call at other points; none by default.
    """

    def __init__(
        self,
        runner: Any,
        ledger: TimeLedger,
        listener: LoopListener = NO_LISTENER,
        after: PointCalls | None = None,
    ) -> None:
        self._runner = runner
        self._ledger = ledger
        self._listener = listener
        self._after = after or {}
        self.is_open = True
        """True while hooks are timed; afterwards they are only called."""
        self._following = dict(FOLLOWING)
        self._idle: dict[str, set[type]] = {}
        self._points: dict[str, _Point] = {}

    def follow(self, fn_name: str, part: str) -> None:
        """Sets which part of training the time after a hook point counts towards."""
        self._following[fn_name] = part
        self._plan()

    def stop(self) -> None:
        """Stops timing hooks; the replaced ``call_hook`` then only calls them."""
        self.is_open = False
        self._points.clear()

    def _plan(self) -> None:
        for name, part in self._following.items() if self.is_open else ():
            calls = self._after.get(name, ())
            self._points[name] = self._idle.get(name, ()), part, calls

    def make(self) -> Callable[..., None]:
        """Makes the function that replaces ``runner.call_hook`` and times hooks."""
        runner, ledger, original = self._runner, self._ledger, self._runner.call_hook
        running, clock, stamp = ledger.running, ledger.clock, ledger.stamps.extend
        is_known, keeps_cause = is_plain(runner), isinstance(runner, FlexibleRunner)
        points, whole = self._points, UNATTRIBUTED
        if is_known:
            self._idle, whole = find_idle_hooks(runner), 'hooks'
        self._plan()
        floor = 1

        def call_hook(fn_name: str, **kwargs: Any) -> None:
            # caches are cold here: what is rare is asked elsewhere
            nonlocal floor
            idle, following, calls = points.get(fn_name, _ELSEWHERE)
            if (following is None or len(running) > 1) and self._pass_on(
                original, fn_name, kwargs
            ):
                return
            stamp((clock(), running[-1]))
            if fn_name == 'before_train_iter':
                # a swallowed error may have left something open within what calls this
                del running[floor:]
            depth, around, floor = len(running), floor, len(running) + 1
            running.append(whole)
            try:
                if is_known:
                    # hooks insert, append and remove themselves in mid-call
                    for hook in runner._hooks:
                        if type(hook) in idle and fn_name not in hook.__dict__:
                            continue
                        function = getattr(hook, fn_name, None)
                        if function is not None:
                            running[depth] = hook
                            function(runner, **kwargs)
                            stamp((clock(), hook))
                else:
                    original(fn_name, **kwargs)
                    stamp((clock(), whole))
            except BaseException as error:
                stamp((clock(), running[-1]))
                if is_known and isinstance(error, TypeError):
                    cause = error if keeps_cause else None
                    raise TypeError(f'{error} in {hook}') from cause
                raise
            finally:
                floor = around
                del running[depth:]
            if depth == 1 and following is not None:
                running[0] = following
            for call in calls:
                call()

        return call_hook

    def _pass_on(
        self, original: Callable[..., None], fn_name: str, kwargs: dict[str, Any]
    ) -> bool:
        """Calls hooks untimed if in a validation or save; returns whether it did."""
        outer = self._ledger.running[-1]
        is_inside = not self.is_open or outer is SAVE or outer is VALIDATION_PART
        if not is_inside and fn_name != 'before_val':
            return False
        if not is_inside:
            self._begin_validation()
        original(fn_name, **kwargs)
        if is_inside and fn_name == 'after_val':
            self._end_validation()
        return True

    def _begin_validation(self) -> None:
        self._ledger.push(VALIDATION_PART)
        self._listener.on_validation_begin()

    def _end_validation(self) -> None:
        is_validating = any(part is VALIDATION_PART for part in self._ledger.running)
        if self.is_open and is_validating:
            self._listener.on_validation_end()
            self._ledger.pop(VALIDATION_PART)


def is_plain(runner: Any) -> bool:
    """True if a Runner's ``call_hook`` is MMEngine's own and was not replaced."""
    if 'call_hook' in vars(runner):
        return False
    function = type(runner).call_hook
    code = getattr(function, '__code__', None)
    return (
        code is not None
        and not hasattr(function, '__wrapped__')
        and os.path.join('mmengine', 'runner') in code.co_filename
        and code.co_names == ('_hooks', 'hasattr', 'getattr', 'TypeError')
    )


def find_idle_hooks(runner: Any) -> dict[str, set[type]]:
    """Finds, for each hook point of an iteration, hook classes that do nothing there.

    Most hooks inherit both methods of MMEngine's `Hook`: one calls the other, which is
    empty. Such calls and their stamps would be half of what an iteration costs.
    """
    idle: dict[str, set[type]] = {}
    for point, inner in IDLE_POINTS.items():
        own = {name: getattr(Hook, name) for name in (point, inner)}
        # somebody may have put another in the place of MMEngine's own
        if _calls(own[point]) == (inner,) and _calls(own[inner]) == ():
            idle[point] = {
                kind
                for kind in map(type, runner.hooks)
                if all(getattr(kind, name, None) is own[name] for name in own)
            }
    return idle


def _calls(function: Any) -> tuple[str, ...] | None:
    """Returns the global and attribute names in an MMEngine hook method's code.

    ``None`` for a method that is not MMEngine's own.
    """
    code = getattr(function, '__code__', None)
    if code is None or os.path.join('mmengine', 'hooks') not in code.co_filename:
        return None
    names: tuple[str, ...] = code.co_names
    return names


def open_ledger(runner: Any, hook: Any, device: str) -> TimeLedger:
    """Creates the ledger that sums a training's seconds by part; starts its clock.

    Args:
        runner: The runner.
        hook: The hook that notes the ends of iterations.
        device: What the model runs on. Anywhere but on ``cpu``, reading the losses
            (`RuntimeInfoHook`) is where the host waits for the device, and so step.
    """
    step_hooks = () if device == 'cpu' else (RuntimeInfoHook,)
    lap_of = hook if is_plain(runner) else UNATTRIBUTED
    return TimeLedger(monotonic_s, step_hooks=step_hooks, lap_of=lap_of)


class LoopTimer:
    """Times hooks, data waits and other parts of a Runner's train loop.

    Args:
        runner: The runner, its train loop built and not yet running.
        ledger: Gets the seconds.
        listener: Hears of validations, of skipped waits and of the last ones.
        after: What to call right after the hooks of a point.
    """

    def __init__(
        self,
        runner: Any,
        ledger: TimeLedger,
        listener: LoopListener,
        after: PointCalls,
    ) -> None:
        self._runner = runner
        self._patches = Patches()
        self.ledger = ledger
        clock = _choose_clock(runner.train_dataloader)
        self.waits = WaitTimer(
            ledger,
            clock.cpu_s,
            cpu_every=clock.every,
            skipped=count_replayed(runner),
            listener=listener,
        )
        self.hooks = HookTimer(runner, ledger, listener, after)
        """Timer that records how many seconds the Runner's hooks take."""

    def open(self) -> None:
        """Replaces the Runner's ``call_hook`` by a function that times hooks."""
        self._patches.set(self._runner, 'call_hook', self.hooks.make())

    def follow(self, iterator: Any) -> None:
        """Begins to time the waits for batches of the train loader's new iterator."""
        if hasattr(iterator, '_next_data') and hasattr(iterator, '_num_yielded'):
            # a loader that is tuned may have workers now, or none any more
            self.waits.read_cpu_by(*_choose_clock(self._runner.train_dataloader))
            self.waits.follow(iterator)
        else:
            self.give_up_waits()

    def give_up_waits(self) -> None:
        """Records all time between steps as data wait, as waits cannot be timed."""
        self.hooks.follow('after_train_iter', 'data_wait')

    def stop(self) -> None:
        """Stops timing hooks and waits; the replaced methods stay in place."""
        self.hooks.stop()
        self.waits.stop()

    def close(self) -> None:
        """Restores the replaced methods of Runner and loader; may be called twice."""
        self.stop()
        self.waits.close()
        self._patches.close()


def loading_cpu_clock(loader: Any) -> Callable[[], float]:
    """Returns the thread's CPU clock for data waits; without workers, the process's."""
    # without workers the loading has threads of its own (OpenCV, torch)
    loads_itself = getattr(loader, 'num_workers', None) == 0
    return process_cpu_s if loads_itself else thread_cpu_s


class _WaitClock(NamedTuple):
    """CPU clock for data waits, and the mean number of waits between readings."""

    cpu_s: Callable[[], float]
    every: int
    """Mean number of data waits per reading of the CPU clock."""


def _choose_clock(loader: Any) -> _WaitClock:
    cpu_s = loading_cpu_clock(loader)
    return _WaitClock(cpu_s, 1 if cpu_s is process_cpu_s else CPU_EVERY)


def count_replayed(runner: Any) -> int:
    """Returns how many batches a resumed train loop loads only to discard them.

    A loop that skips by itself (onedl-mmengine from 0.10.11 on) loads only where its
    sampler cannot skip, and workers have drawn from that.
    """
    loop = runner.train_loop
    if not isinstance(loop, IterBasedTrainLoop):
        return 0
    if hasattr(loop, 'fast_forward_on_resume'):
        wrapper, workers = loop.dataloader_iterator, loop.dataloader.num_workers
        if loop.fast_forward_on_resume or not workers:
            return 0
        if wrapper._resolve_batch_size() and wrapper._resolve_sampler() is not None:
            return 0
    return int(loop.iter)
