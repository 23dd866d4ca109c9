"""What the recording must know of a train loop before it begins."""

from __future__ import annotations

from typing import Any

from mmengine.runner import IterBasedTrainLoop

from mmgpu_hooks.telemetry.clock import Clock, process_cpu_s, thread_cpu_s


def loading_cpu_clock(loader: Any) -> Clock:
    """CPU seconds of whoever loads inside the waits for a loader."""
    # without workers the loading has threads of its own (OpenCV, torch)
    loads_itself = getattr(loader, 'num_workers', None) == 0
    return process_cpu_s if loads_itself else thread_cpu_s


def is_replaying(runner: Any) -> bool:
    """Whether a resumed loop first draws again every batch it had trained on."""
    loop = runner.train_loop
    return isinstance(loop, IterBasedTrainLoop) and loop.iter > 0


def endless_iterator(runner: Any) -> Any:
    """What an iteration-based loop draws from, if it counts its restarts."""
    endless = getattr(runner.train_loop, 'dataloader_iterator', None)
    return endless if isinstance(getattr(endless, '_epoch', None), int) else None
