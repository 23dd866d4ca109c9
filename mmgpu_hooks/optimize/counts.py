"""Counts parameter groups, EMA tensors and other host work when training begins."""

from __future__ import annotations

from typing import Any

import torch
from mmengine.hooks import EMAHook

from mmgpu_hooks.schema.recorded import AveragedModel, StepOverhead


def count_overhead(runner: Any) -> StepOverhead:
    """Counts parameter groups, EMA tensors and other host work per train step.

    Args:
        runner: About to enter its train loop.
    """
    wrapper = runner.optim_wrapper
    wrappers = list(wrapper.values()) if hasattr(wrapper, 'values') else [wrapper]
    # of a GAN's two, which are alike as a rule, one
    chief = max(wrappers, key=lambda each: len(each.optimizer.param_groups))
    optimizer = chief.optimizer
    groups = optimizer.param_groups
    clipped = [
        param
        for each in wrappers
        if getattr(each, 'clip_grad_kwargs', None)
        for group in each.optimizer.param_groups
        for param in group['params']
        if param.requires_grad
    ]
    return StepOverhead(
        optimizer=type(optimizer).__name__,
        groups=len(groups),
        settings=len({_read_settings(optimizer, group) for group in groups}),
        is_fused=any(bool(group.get('fused')) for group in groups),
        clipped_tensors=len(clipped) or None,
        averages=tuple(
            AveragedModel(
                kind=type(hook.ema_model).__name__,
                # a tensor under several names is averaged once for each
                tensors=len(getattr(hook.ema_model, 'avg_parameters', ())),
                interval=getattr(hook.ema_model, 'interval', None),
            )
            for hook in runner.hooks
            if isinstance(hook, EMAHook) and hasattr(hook, 'ema_model')
        ),
        fills_new_tensors=_fills_new_tensors(),
        is_compiled=is_compiled(runner),
        uses_tf32=(
            bool(torch.backends.cudnn.allow_tf32)
            if torch.cuda.is_available()
            and torch.cuda.is_initialized()
            and torch.cuda.get_device_capability() >= _FIRST_WITH_TF32
            else None
        ),
    )


_FIRST_WITH_TF32 = (8, 0)
"""CUDA compute capability of the first GPUs with TF32 (Ampere)."""


def is_compiled(runner: Any) -> bool:
    """True if a Runner compiles the model's ``train_step`` by torch.compile."""
    # FlexibleRunner takes it as an argument, Runner from its config alone
    return bool(runner.cfg.get('compile') or getattr(runner, '_compile', False))


def _read_settings(optimizer: Any, group: Any) -> str:
    """Returns a parameter group's options (``lr`` etc.), tensors excluded, as text."""
    return repr([group.get(name) for name in optimizer.defaults])


def _fills_new_tensors() -> bool:
    # since torch 2.1; those before fill none
    module = getattr(torch.utils, 'deterministic', None)
    is_asked = getattr(module, 'fill_uninitialized_memory', False)
    return bool(is_asked and torch.are_deterministic_algorithms_enabled())
