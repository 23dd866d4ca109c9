"""Profiles the steps of a trial with torch.profiler, and names its modules."""

from __future__ import annotations

import functools
import statistics
from pathlib import Path
from typing import Any

import msgspec
from mmengine.hooks import Hook

from mmgpu_hooks.experiment import profile as names
from mmgpu_hooks.measure.clock import monotonic_s
from mmgpu_hooks.schema.tried import Profile

_CALLS = ('forward', 'loss', 'loss_and_predict')
"""Methods that a detector calls of its modules; its losses are in the latter two."""


class ProfileHook(Hook):
    """Leaves a trace of some steps, and the Profile of them, in the trial's folder.

    Steps begin and end with an idle card here, so that a step's kernels are in it.

    Args:
        folder: Of the trial.
        iterations: To profile, after those that come before.
    """

    def __init__(self, folder: Path, iterations: int) -> None:
        self._folder, self._iterations = folder, iterations
        self._seconds: list[float] = []

    def before_train(self, runner: Any) -> None:
        """Label what is called in a step; copies of the model are made by now."""
        from torch.profiler import profile, schedule

        model, optim = runner.model, runner.optim_wrapper
        self._has_cuda = next(model.parameters()).is_cuda
        for name, module in model.named_modules():
            for call in _CALLS:
                _label(module, call, f'{names.MODULE}{name}')
        for wrapper in getattr(optim, 'values', lambda: [optim])():
            for call in ('backward', 'step', 'zero_grad'):
                part = 'backward' if call == 'backward' else 'optimizer'
                _label(wrapper, call, f'{names.LABEL}{part}')
            self._amp = None
            if 'Amp' in type(wrapper).__name__:
                dtype = getattr(wrapper, 'cast_dtype', None)
                self._amp = str(dtype or "the device's type").removeprefix('torch.')
        wait = names.WARM_UP_STEPS + names.PLAIN_STEPS
        self._profiler = profile(
            schedule=schedule(wait=wait, warmup=1, active=self._iterations, repeat=1),
            on_trace_ready=self._keep,
        )
        self._train_step, model.train_step = model.train_step, self._step
        self._profiler.start()

    def _step(self, *args: Any, **kwargs: Any) -> Any:
        import torch

        wait = torch.cuda.synchronize if self._has_cuda else int
        wait()
        begin_s = monotonic_s()
        with torch.profiler.record_function(names.STEP):
            outputs = self._train_step(*args, **kwargs)
            wait()
        self._seconds.append(monotonic_s() - begin_s)
        self._profiler.step()
        return outputs

    def _keep(self, profiler: Any) -> None:
        import torch

        profiler.export_chrome_trace(str(self._folder / names.TRACE_NAME))
        cudnn, has_cuda = torch.backends.cudnn, self._has_cuda
        plain_s = self._seconds[
            names.WARM_UP_STEPS : names.WARM_UP_STEPS + names.PLAIN_STEPS
        ]
        steps = names.summarize_steps(
            profiler.events(),
            self._iterations,
            statistics.median(plain_s),
            on_card=has_cuda,
        )
        profile = Profile(
            plain_step_s=steps.plain_step_s,
            parts=steps.parts,
            modules=steps.modules,
            products_pct=steps.products_pct,
            kernels=steps.kernels,
            bound=steps.bound,
            bound_reason=steps.bound_reason,
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
        )
        path = self._folder / names.PROFILE_NAME
        path.write_bytes(msgspec.json.encode(profile))


def _label(holder: Any, name: str, label: str) -> None:
    """Put what a method does into a range of the trace."""
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
