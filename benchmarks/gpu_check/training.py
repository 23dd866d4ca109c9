"""GPU checks by real trainings: side effects, cost and recorded figures of the hook."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from mmengine.hooks import Hook
from mmengine.model import BaseModel

from benchmarks import toy
from benchmarks.gpu_check.models import SMALL, Images, ToyModel
from benchmarks.gpu_check.table import Row, judged, skipped, within
from mmgpu_hooks.hooks.recording import Guard
from mmgpu_hooks.measure.cuda import CudaEvents
from mmgpu_hooks.schema.run import read_evidence

LOG_INTERVAL = 4
HOOK = {**toy.HOOK, 'interval': LOG_INTERVAL}
SIDES = [SMALL] * 24
ITERATION_US, INTERVAL_US = 15.0, 1000.0
MORE_US, PAIRS, COST_ITERATIONS = 100.0, 6, 300
STALLS_S = (0.0, 0.02, 0.2)
IDLE_POINTS = 5.0


class Tape(Hook):
    """Hook that records loss, end time and allocator peak of each iteration."""

    priority = 'VERY_HIGH'  # before LoggerHook resets the peak

    def __init__(self) -> None:
        self.losses: list[str] = []
        self.peaks: list[int] = []
        self.ends_s: list[float] = []

    def after_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        self.peaks.append(torch.cuda.max_memory_allocated())
        self.losses.append(outputs['loss'].item().hex())
        self.ends_s.append(time.perf_counter())


class Trained(NamedTuple):
    """Results of one training: losses, end times, memory peaks, the hook's records."""

    tape: Tape
    evidence: Any = None
    """Parsed records of the hook's evidence file; ``None`` without the hook."""


def train(
    model: BaseModel,
    sides: Sequence[int],
    hook: dict[str, Any] | None = HOOK,
    *,
    item_s: float = 0.0,
    optim: str | dict[str, Any] = 'OptimWrapper',
    custom_hooks: Sequence[Any] = (),
    deterministic: bool = False,
    **more: Any,
) -> Trained:
    """Trains with one image per iteration, in a temporary folder.

    Args:
        model: What to train.
        sides: Sides of the images, one an iteration.
        hook: Ours; ``None`` leaves it out.
        item_s: Seconds that an image takes to load.
        optim: MMEngine's optimizer wrapper, by its name or whole.
        custom_hooks: More of them.
        deterministic: Whether only to use algorithms that repeat bit by bit; real
            detectors need others too.
        more: Further arguments of the Runner.
    """
    tape = Tape()
    if isinstance(optim, str):
        optim = {'type': optim, 'optimizer': {'type': 'SGD', 'lr': 1e-4}}
    hooks: dict[str, Any] = {'logger': {'type': 'LoggerHook', 'interval': LOG_INTERVAL}}
    if hook is not None:
        hooks['gpu_efficiency'] = hook
    with tempfile.TemporaryDirectory() as folder:
        runner = toy.build_runner(
            model,
            Images(list(sides), item_s),
            folder,
            hooks=hooks,
            train_cfg={'by_epoch': True, 'max_epochs': 1},
            optim_wrapper=optim,
            custom_hooks=[tape, *custom_hooks],
            randomness={'seed': 3, 'deterministic': deterministic},
            **more,
        )
        runner.train()
        if hook is None:
            return Trained(tape)
        (path,) = Path(folder).glob('*/vis_data/gpu_efficiency*.jsonl')
        evidence = read_evidence(path)
        # the file, from which records are read on demand, goes with the folder
        held = replace(evidence, intervals=tuple(evidence.intervals))
        return Trained(tape, held)


def check_losses() -> list[Row]:
    """Checks that the hook leaves the losses of a training identical in every bit."""
    rows = []
    for name, optim in (('fp32', 'OptimWrapper'), ('AMP', 'AmpOptimWrapper')):
        check = f'losses with the hook, {name}'
        try:
            first, again, hooked = (
                train(
                    ToyModel(), SIDES, ours, deterministic=True, optim=optim
                ).tape.losses
                for ours in (None, None, HOOK)
            )
        finally:
            torch.use_deterministic_algorithms(False)  # MMEngine leaves it on
        if first != again:
            why = 'two trainings without the hook differ here already'
            rows.append(skipped(check, why))
            continue
        different = sum(a != b for a, b in zip_longest(first, hooked))
        shown, target = f'{different} of {len(first)} differ', '0 differ, bit by bit'
        note = 'beside a control of two trainings without it, which do not differ'
        rows.append(judged(check, shown, target, different == 0, note))
    return rows


def check_sync() -> list[Row]:
    """Checks that the hook never synchronises with the GPU during training."""
    check = 'synchronisation by the hook'
    try:
        refuse_sync(lambda: torch.ones(1, device='cuda').item())()
    except RuntimeError:
        with refusing_sync():
            evidence = train(ToyModel(), SIDES).evidence
        off = [f'{source.source}: {source.reason}' for source in evidence.sources_off]
        note = '; '.join(off) or f'{len(SIDES)} iterations'
        return [judged(check, f'{len(off)} source(s)', 'none', not off, note)]
    return [skipped(check, 'set_sync_debug_mode of this torch refuses none')]


def refuse_sync(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function so that torch raises an error on GPU synchronisation."""

    def call(*args: Any, **kwargs: Any) -> Any:
        torch.cuda.set_sync_debug_mode('error')
        try:
            return function(*args, **kwargs)
        finally:
            torch.cuda.set_sync_debug_mode('default')

    return call


@contextmanager
def refusing_sync() -> Iterator[None]:
    """Context in which GPU synchronisation by the hook's methods raises an error."""
    run = Guard.run

    def run_strictly(
        guard: Guard, source: str, function: Any, *a: Any, **k: Any
    ) -> Any:
        return run(guard, source, refuse_sync(function), *a, **k)

    with patch.object(Guard, 'run', run_strictly):
        yield


def check_cost() -> list[Row]:
    """Checks the time per iteration that CUDA events and the whole hook take."""
    sides, hook = [SMALL] * COST_ITERATIONS, {**HOOK, 'interval': 50}
    with timing(CudaEvents, 'begin_step', 'end_step', 'drain') as spent_s:
        train(ToyModel(), sides, hook)
    begins, ends, drains = spent_s.values()
    if not begins:
        return [skipped('cost of events', 'the hook records none here')]
    each_us = [1e6 * (begin + end) for begin, end in zip(begins, ends)][100:]
    drains_us, rows = [1e6 * drain_s for drain_s in drains], []
    for name, spent_us, most_us in (
        ('iteration', each_us, ITERATION_US),
        ('interval', drains_us, INTERVAL_US),
    ):
        value_us, check = statistics.median(spent_us), f'cost of events, {name}'
        shown, target = f'{value_us:.2f} us median', f'<= {most_us:.0f} us'
        note = f'of {len(spent_us)}'
        rows.append(judged(check, shown, target, value_us <= most_us, note))
    more_us = []
    for pair in range(PAIRS):
        order = (None, hook) if pair % 2 else (hook, None)
        taken = {
            bool(hooked): _iteration_s(train(ToyModel(), sides, hooked))
            for hooked in order
        }
        more_us.append(1e6 * (taken[True] - taken[False]))
    mean, target = statistics.fmean(more_us), f'<= {MORE_US:.0f} us'
    note = f'of {1e3 * taken[False]:.2f} ms; {PAIRS} pairs of trainings, standard '
    note += f'deviation {statistics.stdev(more_us):.0f} us'
    check = 'what the hook adds to an iteration'
    return [*rows, judged(check, f'{mean:+.0f} us', target, mean <= MORE_US, note)]


def _iteration_s(trained: Trained) -> float:
    ends_s = trained.tape.ends_s[100:]
    return statistics.median(b - a for a, b in zip(ends_s, ends_s[1:]))


@contextmanager
def timing(kind: Any, *names: str) -> Iterator[dict[str, list[float]]]:
    """Context that records the duration in seconds of each call of given methods."""
    spent_s: dict[str, list[float]] = {name: [] for name in names}
    methods = {name: getattr(kind, name) for name in names}

    def timed(name: str) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            start_s = time.perf_counter()
            found = methods[name](*args)
            spent_s[name].append(time.perf_counter() - start_s)
            return found

        return call

    with ExitStack() as stack:
        for name in names:
            stack.enter_context(patch.object(kind, name, timed(name)))
        yield spent_s


def check_stalls() -> list[Row]:
    """Checks the recorded data wait and GPU idle share when images load slowly."""
    rows = []
    for item_s in STALLS_S:
        evidence = train(ToyModel(), SIDES[: 3 * LOG_INTERVAL], item_s=item_s).evidence
        steady = evidence.intervals[1:]
        count = sum(record.iterations for record in steady)
        wait_ms = 1e3 * sum(record.ledger_s['data_wait'] for record in steady) / count
        whole_ms = 1e3 * sum(record.duration_s for record in steady) / count
        check, planted_ms = f'images of {1e3 * item_s:.0f} ms', 1e3 * item_s
        most_ms = 0.1 * planted_ms + 10
        rows.append(within(f'{check}: wait', wait_ms, planted_ms, most_ms, 'ms'))
        idle, share = read_idle(evidence), 100 * wait_ms / whole_ms
        shown = 'unknown' if idle is None else f'{idle:.0f} %'
        passed = idle is not None and idle >= share - IDLE_POINTS
        target = f'at least the wait, {share:.0f} %'
        note = f'{count} iterations of {whole_ms:.1f} ms'
        rows.append(judged(f'{check}: idle share', shown, target, passed, note))
    return rows


def read_idle(evidence: Any) -> float | None:
    """Returns the mean per cent of GPU idle time in all but the first log interval."""
    shares = [record.gpu_idle_pct for record in evidence.intervals[1:]]
    known = [share for share in shares if share is not None]
    return statistics.fmean(known) if len(known) == len(shares) > 0 else None


def check_ema() -> list[Row]:
    """Checks the GPU idle time between steps against profiled kernels, with EMAHook."""
    check, stall_s = 'idle share beside torch.profiler, EMAHook', 0.03
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        custom = [{'type': 'EMAHook'}]
        evidence = train(
            ToyModel(1000), SIDES, item_s=stall_s, custom_hooks=custom
        ).evidence
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in profiler.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    )
    theirs = read_idle_pct(spans, 1e6 * stall_s)
    if theirs is None:
        return [skipped(check, 'torch.profiler sees no kernels')]
    note = f'{len(spans)} kernels and copies'
    return [within(check, read_idle(evidence), theirs, IDLE_POINTS, note=note)]


def read_idle_pct(
    spans: Sequence[tuple[float, float]], stall_us: float
) -> float | None:
    """Returns the per cent of GPU time in kernel-free gaps of ``stall_us`` or more.

    Args:
        spans: Begin and end of what the card did, in order.
        stall_us: Least length of a stall.
    """
    stalls, now_us = [], spans[0][1] if spans else 0.0
    for begin_us, end_us in spans:
        if begin_us - now_us >= stall_us:
            stalls.append((now_us, begin_us))
        now_us = max(now_us, end_us)
    stalls = stalls[LOG_INTERVAL:]
    if len(stalls) < 2:
        return None
    idle_us = sum(end - begin for begin, end in stalls[1:])
    return 100 * idle_us / (stalls[-1][1] - stalls[0][1])
