"""Real trainings on the GPU: the peaks that the hook records, and equal losses."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from mmengine.dataset import pseudo_collate
from mmengine.hooks import Hook
from mmengine.runner import Runner

from benchmarks.gpu_check.models import LARGE, SMALL, Images, Subject, detector, toy
from benchmarks.gpu_check.table import Row, judged, skipped
from mmgpu_hooks.schema import RunEvidence
from mmgpu_hooks.schema.reader import read_evidence

HOOK = {'type': 'mmgpu_hooks.GPUEfficiencyHook', 'summary': False}
LOG_INTERVAL = 4
LOSS_SIDE, LOSS_ITERATIONS = SMALL, 24


class Tape(Hook):
    """Keeps each iteration's loss, and the allocator's peak as torch tells it.

    Args:
        read_peak: Reads the peak, in bytes.
    """

    priority = 'VERY_HIGH'  # before LoggerHook resets the peak

    def __init__(self, read_peak: Callable[[], int]) -> None:
        self._read_peak = read_peak
        self.losses: list[str] = []
        self.peaks: list[int] = []

    def after_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        self.peaks.append(self._read_peak())
        self.losses.append(outputs['loss'].item().hex())


class Trained(NamedTuple):
    """What a training left."""

    tape: Tape
    evidence: RunEvidence | None
    """``None`` without the hook."""


def train(
    subject: Subject,
    sides: Sequence[int],
    hook: dict[str, Any] | None,
    *,
    deterministic: bool = False,
    read_peak: Callable[[], int] = torch.cuda.max_memory_allocated,
) -> Trained:
    """Train on one image an iteration, in a folder that is gone afterwards.

    Args:
        subject: What to train.
        sides: Sides of the images, one an iteration.
        hook: Ours; ``None`` leaves it out.
        deterministic: Whether only to use algorithms that repeat bit by bit; real
            detectors need others too.
        read_peak: Reads the allocator's peak.
    """
    tape = Tape(read_peak)
    default_hooks: dict[str, Any] = {
        'logger': {'type': 'LoggerHook', 'interval': LOG_INTERVAL},
        'checkpoint': {'type': 'CheckpointHook', 'interval': -1, 'save_last': False},
    }
    if hook is not None:
        default_hooks['gpu_efficiency'] = hook
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(
            model=subject.model,
            work_dir=folder,
            train_dataloader={
                'dataset': Images(subject.item, list(sides)),
                'sampler': {'type': 'DefaultSampler', 'shuffle': False},
                'batch_size': 1,
                'num_workers': 0,
                'collate_fn': {'type': pseudo_collate},
            },
            train_cfg={'by_epoch': True, 'max_epochs': 1},
            optim_wrapper={'optimizer': {'type': 'SGD', 'lr': 1e-4}},
            default_hooks=default_hooks,
            custom_hooks=[tape],
            randomness={'seed': 3, 'deterministic': deterministic},
            log_level='ERROR',
            experiment_name=f'gpu_check_{uuid.uuid4().hex}',
        )
        runner.train()
        if hook is None:
            return Trained(tape, None)
        (path,) = Path(folder).glob('*/vis_data/gpu_efficiency.jsonl')
        evidence = read_evidence(path)
        # the file, from which records are read on demand, goes with the folder
        held = replace(evidence, intervals=tuple(evidence.intervals))
        return Trained(tape, held)


def check_peaks() -> list[Row]:
    """Peaks of a real training; the largest batch comes right after a reset."""
    found = detector()
    if found is None:
        why = 'neither torchvision nor mmdet can be imported: the toy stands for one'
        rows = [skipped('allocator peaks, detector', why)]
        return [*rows, *_check_subject(toy)]
    return _check_subject(detector) + _check_subject(toy)


def _check_subject(make: Callable[[], Subject | None]) -> list[Row]:
    rows = []
    for every, name in ((1, "at LoggerHook's interval"), (2, 'across its reset')):
        subject = make()
        assert subject is not None
        interval = LOG_INTERVAL * every
        # the first batch of an interval is the largest, all others are small
        sides = [SMALL if i % interval else LARGE for i in range(3 * interval)]
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        trained = train(subject, sides, {**HOOK, 'interval': interval})
        rows.append(_compare(f'allocator peaks {name}, {subject.name}', trained))
    return rows


def _compare(check: str, trained: Trained) -> Row:
    evidence, peaks = trained.evidence, trained.tape.peaks
    assert evidence is not None
    pairs = [
        (record.gpu_mem_peak_bytes, max(peaks[first:last]), peaks[last - 1])
        for record in evidence.intervals
        for first, last in [(record.iteration - record.iterations, record.iteration)]
    ]
    if not pairs:
        return judged(check, 'no interval recorded', '0 bytes off', False)
    if any(ours is None for ours, _, _ in pairs):
        reason = evidence.run.unknown.get('GPU memory', 'no reason given')
        return judged(check, 'unknown', '0 bytes off', False, reason)
    off = max(abs(int(ours or 0) - theirs) for ours, theirs, _ in pairs)
    ours, theirs, last = pairs[-1]
    lost_mib = (theirs - last) / 2**20
    return judged(
        check,
        f'{int(ours or 0) / 2**20:.1f} MiB, {off} bytes off at most',
        '0 bytes off',
        off == 0,
        f'{len(pairs)} intervals, {len(trained.tape.losses)} iterations; a look at '
        f'the end of the interval alone would miss {lost_mib:.1f} MiB',
        sensitive=False,
    )


def check_losses() -> list[Row]:
    """The same training with and without the hook, bit by bit."""
    check = 'losses with the hook'
    sides = [LOSS_SIDE] * LOSS_ITERATIONS
    hook = {**HOOK, 'interval': LOG_INTERVAL}
    try:
        first, again, hooked = (
            train(toy(), sides, ours, deterministic=True).tape.losses
            for ours in (None, None, hook)
        )
    finally:
        torch.use_deterministic_algorithms(False)  # MMEngine leaves it on
    if first != again:
        return [skipped(check, 'two trainings without the hook differ here already')]
    different = sum(a != b for a, b in zip(first, hooked))
    different += abs(len(first) - len(hooked))
    return [
        judged(
            check,
            f'{different} of {len(first)} differ',
            '0 differ, bit by bit',
            different == 0,
            'beside a control of two trainings without it, which do not differ',
            sensitive=False,
        )
    ]
