"""Checkpoint saves that were brought about beside several numbers of workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple

from mmgpu_hooks.records.saving import SaveRecord


@dataclass(frozen=True)
class SaveSetting:
    """What one training of the experiment is trained with."""

    num_workers: int
    worker_nice: Optional[int] = None
    """Nice value that the hook gives the workers; ``None`` leaves theirs."""

    @property
    def name(self) -> str:
        """``1 worker``, ``8 workers`` or ``8 workers, nice 10``."""
        words = f'{self.num_workers} worker{"" if self.num_workers == 1 else "s"}'
        return f'{words}, nice {self.worker_nice}' if self.worker_nice else words


@dataclass(frozen=True)
class SavePlan:
    """What one setting is to be trained for."""

    setting: SaveSetting
    saves: int
    """Measured ones; one more is made before them, and left out."""
    interval: int
    """Iterations from one save to the next."""
    iterations: int
    """In all, those after the last save included."""


@dataclass(frozen=True)
class SaveBenchRow:
    """The saves of one setting; figures are medians over them, per save.

    All of them are ``None`` where no save was measured.
    """

    setting: SaveSetting
    status: str
    """One of :data:`TRIAL_STATUSES`."""
    error: Optional[str] = None
    """The decisive line; ``None`` when it completed."""
    interval: int = 0
    iterations: int = 0
    """Trained, whatever the status."""
    seconds: float = 0.0
    """Of the whole trial, its start included."""
    saves: Tuple[SaveRecord, ...] = ()
    """In order; the first of the training is left out, and any that failed."""
    save_s: Optional[float] = None
    cpu_s: Optional[float] = None
    run_delay_s: Optional[float] = None
    blocked_s: Optional[float] = None
    bytes: Optional[int] = None
    workers_busy: Optional[float] = None
    data_wait_s: Optional[float] = None
    """Per iteration, a mean over the training."""
    iter_s: Optional[float] = None
    """A mean, saves left out."""
    strangers_cores: Optional[float] = None
    """Cores of the host that others used while it saved."""
    slow: int = 0
    """Saves that were judged slow, by themselves and their own run."""
    cause: Optional[str] = None
    """Out of :data:`SAVE_CAUSES`: what held most of the slow ones, where proven."""
    gross_s: Optional[float] = None
    """Longer than the saves of the reference; negative when shorter."""
    net_s: Optional[float] = None
    """What the job lost of that: less what the workers won back meanwhile."""
    chance: Optional[float] = None
    """Of saves as long as these, had the setting no effect (rank sum); ``None`` for
    the reference."""
    is_harmful: Optional[bool] = None
    """Whether saves take longer by enough to matter, and beyond noise; ``None`` for the
    reference, and when it cannot be told."""
    remark: Optional[str] = None
    """Why it cannot be told, or other words that belong to the row."""


@dataclass(frozen=True)
class SaveBench:
    """What number of workers does to saves, on this host and with this model."""

    rows: Tuple[SaveBenchRow, ...]
    """By nice value and number of workers; those without a nice value first."""
    reference: Optional[SaveSetting] = None
    """The fewest workers whose saves were measured: the others are set against it."""
    harmful_workers: Optional[int] = None
    """The smallest number from which on saves are harmed; ``None`` when no measured
    number is, or it cannot be told."""
    is_told: bool = False
    """Whether anything could be set against the reference."""
    is_interrupted: bool = False
    seconds: float = 0.0
    order: Tuple[SaveSetting, ...] = ()
    """In which the settings were trained."""
