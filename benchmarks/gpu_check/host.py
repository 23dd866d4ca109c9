"""GPU checks of ``optimize``: bit-identical results, and host time saved per step."""

from __future__ import annotations

import hashlib
import tempfile
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from mmengine.hooks import EMAHook, Hook

from benchmarks.gpu_check.child import read_answer, start_python
from benchmarks.gpu_check.longer import CONFIG, PROFILE
from benchmarks.gpu_check.models import ToyModel
from benchmarks.gpu_check.table import Row, judged, skipped
from benchmarks.gpu_check.training import HOOK, SIDES, train

OPTIMIZED = {**HOOK, 'optimize': 'param_groups,ema,history'}
BY_TENSOR: dict[str, Any] = {
    'optimizer': {'type': 'AdamW', 'lr': 1e-4, 'weight_decay': 0.05},
    'paramwise_cfg': {'norm_decay_mult': 0.0, 'bias_decay_mult': 0.0},
    'clip_grad': {'max_norm': 1.0},
}
"""Optimizer settings that give each parameter its own group, as many detectors do."""
KINDS = {'fp32': 'OptimWrapper', 'AMP': 'AmpOptimWrapper'}
"""Optimizer wrappers to check: ``OptimWrapper`` and the loss-scaling AMP wrapper."""
TENSORS = 200
LATE = f"""
model['more'] = {TENSORS}
optim_wrapper = {BY_TENSOR!r}
custom_hooks = [dict(type='EMAHook')]
"""
"""Config lines that add 200 tensors and an EMAHook to the profiled training."""


class Digest(Hook):
    """Hook that records digests of weights and EMA weights at the end of training."""

    priority = 'VERY_LOW'

    def __init__(self) -> None:
        self.digest = ''

    def after_train(self, runner: Any) -> None:
        averages = [
            hook.ema_model for hook in runner.hooks if isinstance(hook, EMAHook)
        ]
        digest = hashlib.sha256()
        for model in (runner.model, *averages):
            for tensor in model.state_dict().values():
                digest.update(tensor.detach().cpu().numpy().tobytes())
        self.digest = digest.hexdigest()


def check_optimize() -> list[Row]:
    """Checks that ``optimize`` leaves losses and weights identical in every bit."""
    rows = []
    for name, kind in KINDS.items():
        check, found = f'optimize, {name}', []
        try:
            for hook in (HOOK, HOOK, OPTIMIZED):
                digest = Digest()
                trained = train(
                    ToyModel(TENSORS),
                    SIDES,
                    hook,
                    optim={'type': kind, **deepcopy(BY_TENSOR)},
                    custom_hooks=[{'type': 'EMAHook'}, digest],
                    deterministic=True,
                )
                found.append((trained.tape.losses, digest.digest))
                spared = trained.evidence.end.spared
        finally:
            torch.use_deterministic_algorithms(False)  # MMEngine leaves it on
        plain, again, ours = found
        if plain != again:
            why = 'two trainings without it differ here already'
            rows.append(skipped(check, why))
            continue
        note = '; '.join(
            f'{part} {1e3 * time.plain_s:.2f} to {1e3 * time.ours_s:.2f} ms of CPU'
            for part, time in spared.items()
        )
        shown = 'the same' if ours == plain else 'other bits'
        passed = ours == plain and {'param_groups', 'ema'} <= set(spared)
        rows.append(judged(check, shown, 'the same bits', passed, note))
    return rows


def check_overhead() -> list[Row]:
    """Checks a train step's host time outside kernels, and how ``optimize`` cuts it."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, 'toy.py')
        config.write_text(CONFIG + LATE)
        found = read_answer(start_python(PROFILE, str(config), '--work-dir', folder))
    uncovered_s, plain_s = found['uncovered_s'], found['plain_step_s']
    if uncovered_s is None:
        return [skipped('host time that no kernel covers', found['bound_reason'])]
    rows = []
    for name in ('optimizer step', 'average'):
        part = found['host_parts'][name]
        before_ms, after_ms = 1e3 * part['plain_s'], 1e3 * (part['optimized_s'] or 0.0)
        shown = f'{before_ms:.2f} ms, with optimize {after_ms:.2f} ms'
        passed = 0.0 < after_ms < before_ms / 2
        rows.append(judged(f'host time, {name}', shown, 'less than half', passed))
    step = found['host_parts']['optimizer step']
    less_s = step['plain_s'] - (step['optimized_s'] or step['plain_s'])
    left_s = max(uncovered_s - less_s, 0.0)
    shown = f'{1e3 * uncovered_s:.2f} ms of a step of {1e3 * plain_s:.2f} ms, then '
    shown += f'{1e3 * left_s:.2f} ms'
    note = f'{found["kernels"]:.0f} kernels a step, bound by {found["bound"]}'
    passed = left_s < uncovered_s
    rows.append(judged('host time that no kernel covers', shown, 'less', passed, note))
    return rows
