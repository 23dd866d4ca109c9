"""The training loop and loader that are simulated, and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Loop:
    """What is simulated; seconds. Sequences are gone through in turn, over and over."""

    workers: int
    """At least one."""
    prefetch_factor: int
    cores: float
    """That the loop and its workers may use together."""
    host_cores: float
    """That they and the strangers share."""
    stranger_tasks: float
    batch_cpu_s: Sequence[float]
    batch_wait_s: Sequence[float]
    """Of a worker for each batch, beside its CPU; as many as ``batch_cpu_s``."""
    fetch_s: float
    """CPU of fetching a ready batch, of the loop and of the worker in turn."""
    fetch_busy_s: float
    """What it takes longer when no core is free."""
    step_cpu_s: float
    """CPU of the step, spinning left out, over its threads."""
    step_threads: int
    step_spin_s: float
    step_wait_s: float
    wake_s: float = 0.0
    """How long a worker that gets a batch to make waits for a core when none is free:
    it has to wait for a turn."""
    step_factors: Sequence[float] = (1.0,)
    step_power: float = 1.0
    """See `LoaderWorkload.step_power`."""
    start_s: float = 0.0
    """CPU of the training process to start one worker, before the first batch."""
    batches: int | None = None
    """Batches of the epoch; ``None`` for one without end."""
    pauses: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    """CPU and waiting of saves, by the number of iterations done before them."""


@dataclass(frozen=True)
class Trace:
    """What came of it; the sums are over the iterations that were asked for."""

    ends_s: Sequence[float]
    """When each iteration ended, the first ones included."""
    iterations: int
    """That the sums are over."""
    seconds: float
    wait_s: float
    """The loop had no batch."""
    step_s: float
    fetch_s: float
    pause_s: float
    busy_s: float
    """Workers had a batch to make, summed over them."""
    stranger_cpu_s: float
