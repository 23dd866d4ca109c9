"""Profiles a trial's train steps with torch.profiler, and labels its modules.

Before that, the parts of an iteration on the host are timed: as they are, and with the
optimisations that leave all bits the same.
"""

from __future__ import annotations

import contextlib
import functools
import math
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from mmengine.hooks import EMAHook, Hook, ParamSchedulerHook

from mmgpu_hooks.experiment import profile as names
from mmgpu_hooks.measure.clock import monotonic_s, thread_cpu_s
from mmgpu_hooks.optimize.counts import count_overhead
from mmgpu_hooks.optimize.optimizations import Optimizations
from mmgpu_hooks.optimize.refusal import RefusalError
from mmgpu_hooks.optimize.sent_batches import time_sending
from mmgpu_hooks.optimize.turns import Turns
from mmgpu_hooks.schema.text import encode_text
from mmgpu_hooks.schema.tried import HOST_PARTS, HostPart, Profile

_CALLS = ('forward', 'loss', 'loss_and_predict')
"""Names of the methods, of each module, that get a label in the profiler's trace.

Losses are computed in the latter two."""
_REPLACED = {'param_groups': 'optimizer step', 'ema': 'average'}
"""Part of an iteration that an optimisation speeds up, by the optimisation's name."""
_OF_HOOKS = {EMAHook: 'average', ParamSchedulerHook: 'schedulers'}
"""Part of an iteration that a hook's CPU time is added to, by hook class."""
_MAIN = 'forward and backward'
"""Name for the part of a train step left after subtracting its other timed parts."""
_END = len(names.UNPROFILED) - names.UNPROFILED[::-1].index(names.OPTIMIZED)
_BEGIN = names.UNPROFILED.index(names.OPTIMIZED) - 2
"""Index of the iteration at which the profiled trial switches optimisations on.

The first two with them make lists and are a warm-up."""


HostParts = dict[str, HostPart]


class HostClock:
    """Sums the training thread's CPU seconds by part of an iteration."""

    def __init__(self) -> None:
        self._now_s: dict[str, float] = defaultdict(float)
        self._parts_s: dict[str, list[Mapping[str, float]]] = defaultdict(list)

    def time(self, holder: Any, name: str, part: str, within: str = '') -> None:
        """Wraps a method so that its CPU time is added to one part of the iteration.

        Args:
            holder: Of the method.
            name: Of it.
            part: That its time belongs to.
            within: The part that calls it; its time is taken off there.
        """
        call = getattr(holder, name, None)
        if not callable(call):
            return

        @functools.wraps(call)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.timing(part, within):
                return call(*args, **kwargs)

        setattr(holder, name, timed)

    @contextlib.contextmanager
    def timing(self, part: str, within: str = '') -> Iterator[None]:
        """Context whose CPU time is added to one part of the iteration.

        Arguments are as of :meth:`time`.
        """
        began_s = thread_cpu_s()
        try:
            yield
        finally:
            spent_s = thread_cpu_s() - began_s
            self._now_s[part] += spent_s
            if within:
                self._now_s[within] -= spent_s

    def end_iteration(self, way: str) -> None:
        """Stores CPU seconds by part of a warm-up, plain or optimised iteration."""
        self._parts_s[way].append(self._now_s)
        self._now_s = defaultdict(float)

    def summarize(self, *, is_optimized: bool, rare: Collection[str] = ()) -> HostParts:
        """Returns CPU seconds per iteration by part, without and with optimisations.

        Args:
            is_optimized: True if an optimisation was on.
            rare: Parts that take long in some iterations alone.
        """
        found = {}
        plain, ours = self._parts_s[names.PLAIN], self._parts_s[names.OPTIMIZED]
        for part in {part for parts_s in plain for part in parts_s}:
            plain_s, ours_s = (
                [parts_s[part] for parts_s in way] for way in (plain, ours)
            )
            found[part] = HostPart(
                plain_s=_average(plain_s, part in rare),
                optimized_s=_average(ours_s, part in rare) if is_optimized else None,
                error_s=math.hypot(_find_error(plain_s), _find_error(ours_s)),
            )
        return found


def _average(seconds: list[float], is_rare: bool) -> float:
    """Returns the median of CPU seconds, or the mean if some iterations took none."""
    if is_rare or 0 in seconds:
        return statistics.fmean(seconds)
    return statistics.median(seconds)


def _find_error(seconds: list[float]) -> float:
    """Returns the standard error of mean CPU seconds, with the largest value left out.

    Python's garbage collector may be in that.
    """
    usual = sorted(seconds)[:-1]
    return statistics.stdev(usual) / len(usual) ** 0.5 if len(usual) > 1 else 0.0


class ProfileHook(Hook):
    """Hook that profiles some train steps, and writes a trace and a `Profile`.

    Steps begin and end with an idle card here, so that a step's kernels are in it.

    Args:
        folder: Of the trial.
        iterations: To profile, after those that come before.
    """

    # after every hook that is timed: an iteration ends with it
    priority = 'LOWEST'

    def __init__(self, folder: Path, iterations: int) -> None:
        self._folder, self._iterations = folder, iterations
        self._seconds: list[float] = []
        self._host = HostClock()
        self._refused: dict[str, str] = {}
        self._optimizations: Optimizations | None = None
        self._used: tuple[str, ...] = ()
        self._sent: HostParts = {}

    def before_train(self, runner: Any) -> None:
        """Labels the train step's calls in the profiler's trace, once models exist."""
        from torch.profiler import profile, schedule

        model, optim = runner.model, runner.optim_wrapper
        self._runner, self._counted = runner, count_overhead(runner)
        self._has_cuda = next(model.parameters()).is_cuda
        for name, module in model.named_modules():
            for call in _CALLS:
                _label(module, call, f'{names.MODULE}{name}')
        for wrapper in getattr(optim, 'values', lambda: [optim])():
            for call in ('backward', 'step', 'zero_grad'):
                part = 'backward' if call == 'backward' else 'optimizer'
                _label(wrapper, call, f'{names.LABEL}{part}')
            self._host.time(wrapper, '_clip_grad', 'clipping', 'optimizer step')
            self._host.time(wrapper, 'step', 'optimizer step', _MAIN)
            self._host.time(wrapper, 'zero_grad', 'zeroing', _MAIN)
            self._amp = None
            if 'Amp' in type(wrapper).__name__:
                dtype = getattr(wrapper, 'cast_dtype', None)
                self._amp = str(dtype or "the device's type").removeprefix('torch.')
        for hook in runner.hooks:
            for kind, part in _OF_HOOKS.items():
                if isinstance(hook, kind):
                    self._host.time(hook, 'after_train_iter', part)
        # it compares whole iterations
        Turns.calls = 0
        wait = len(names.UNPROFILED)
        self._profiler = profile(
            schedule=schedule(wait=wait, warmup=1, active=self._iterations, repeat=1),
            on_trace_ready=self._keep,
        )
        self._train_step, model.train_step = model.train_step, self._step
        self._profiler.start()

    def _step(self, *args: Any, **kwargs: Any) -> Any:
        import torch

        done = len(self._seconds)
        if done == _BEGIN:
            self._optimizations = Optimizations(_REPLACED, self._runner.logger)
            self._optimizations.begin_training(self._runner)
        elif done == _END:
            self._end_optimized()
        elif done == len(names.UNPROFILED):
            self._time_batch(args[0] if args else kwargs.get('data'))
        wait = torch.cuda.synchronize if self._has_cuda else int
        wait()
        begin_s = monotonic_s()
        with torch.profiler.record_function(names.STEP):
            with self._host.timing(_MAIN):
                outputs = self._train_step(*args, **kwargs)
            wait()
        self._seconds.append(monotonic_s() - begin_s)
        self._profiler.step()
        return outputs

    def after_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        """Stores the ended iteration's CPU seconds by part in the `HostClock`."""
        done = len(self._seconds) - 1
        is_profiled = done >= len(names.UNPROFILED)
        self._host.end_iteration(
            names.WARM_UP if is_profiled else names.UNPROFILED[done]
        )

    def _end_optimized(self) -> None:
        """Switches the optimisations off, and notes which were on or refused."""
        assert self._optimizations is not None
        self._used = self._optimizations.names
        self._refused = self._optimizations.refused
        self._optimizations.close()

    def _time_batch(self, batch: Any) -> None:
        """Measures CPU seconds to send a batch as a worker does, and to receive it."""
        if not getattr(self._runner.train_dataloader, 'num_workers', 0):
            return
        try:
            plain, ours = time_sending(batch)
        except RefusalError as refusal:
            self._refused['small_tensors'] = str(refusal)
            return
        self._sent = {
            'batch received': HostPart(
                plain.received_s, ours.received_s, 2**0.5 * plain.received_error_s
            ),
            'batch sent': HostPart(plain.sent_s, ours.sent_s),
        }

    def _list_host_parts(self) -> HostParts:
        """Returns CPU seconds of an iteration's parts, with the step's parts first."""
        # an average may be taken now and then
        often = [average.interval or 1 for average in self._counted.averages]
        rare = ('average',) if max(often, default=1) > 1 else ()
        parts = self._host.summarize(is_optimized=bool(self._used), rare=rare)
        for name, part in _REPLACED.items():
            if part in parts and name not in self._used:
                parts[part] = replace(parts[part], optimized_s=None)
        parts.update(self._sent)
        return {part: parts[part] for part in HOST_PARTS if part in parts}

    def _keep(self, profiler: Any) -> None:
        import torch

        profiler.export_chrome_trace(str(self._folder / names.TRACE_NAME))
        cudnn, has_cuda = torch.backends.cudnn, self._has_cuda
        plain_s = [
            seconds
            for way, seconds in zip(names.UNPROFILED, self._seconds)
            if way == names.PLAIN
        ]
        steps = names.summarize_steps(
            profiler.events(),
            self._iterations,
            statistics.median(plain_s),
            on_card=has_cuda,
        )
        profile = Profile(
            **vars(steps),
            device=torch.cuda.get_device_name() if has_cuda else 'CPU',
            iterations=self._iterations,
            step_s=statistics.fmean(self._seconds[-self._iterations :]),
            amp=self._amp,
            capability=torch.cuda.get_device_capability() if has_cuda else None,
            flags={
                'float32_matmul_precision': torch.get_float32_matmul_precision(),
                'cudnn_allow_tf32': cudnn.allow_tf32,
                'cudnn_benchmark': cudnn.benchmark,
                'cudnn_deterministic': cudnn.deterministic,
            },
            folder=str(self._folder),
            host_parts=self._list_host_parts(),
            counted=self._counted,
            refused=self._refused,
        )
        path = self._folder / names.PROFILE_NAME
        path.write_bytes(msgspec.json.encode(profile, enc_hook=encode_text))


def _label(holder: Any, name: str, label: str) -> None:
    """Wraps a method so that the profiler's trace shows its calls as a named range."""
    import torch

    call = getattr(holder, name, None)
    # a submodule may have the name of a method
    if not callable(call) or isinstance(call, torch.nn.Module):
        return

    @functools.wraps(call)
    def labelled(*args: Any, **kwargs: Any) -> Any:
        with torch.profiler.record_function(label):
            return call(*args, **kwargs)

    setattr(holder, name, labelled)
