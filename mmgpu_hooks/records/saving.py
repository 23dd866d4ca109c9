"""What is measured of one checkpoint save, and of the iterations after it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping, Optional

SAVE_PHASES = ('copy', 'serialise', 'write', 'rest')
"""Copies to host memory; ``torch.save`` into a buffer; the backend's ``put``; what is
in none of them (file names, hooks of ``before_save_checkpoint``, a strategy's own
way)."""


@dataclass(frozen=True)
class SavePhase:
    """One phase of a save, as the saving thread went through it.

    ``wall_s = cpu_s + run_delay_s + blocked_s`` where the scheduler tells.
    """

    wall_s: float
    cpu_s: Optional[float] = None
    """On a core."""
    run_delay_s: Optional[float] = None
    """Ready to run, but waiting for a core."""
    blocked_s: Optional[float] = None
    """Neither: waiting for storage, a lock, the GPU, another thread."""


@dataclass(frozen=True)
class SaveRecord:
    """One call of ``save_checkpoint``, first copy to last byte."""

    iteration: int
    """Iterations done when it began, counted over the whole training."""
    epoch: int
    """1-based."""
    wall_s: float
    occasion: str = 'other'
    """``iteration``, ``epoch``, ``best``, ``publish`` or ``other`` (somebody's own)."""
    name: Optional[str] = None
    """Name of the file or folder, without its path."""
    backend: Optional[str] = None
    """Class of the file backend that wrote it, such as ``LocalBackend``."""
    is_remote: Optional[bool] = None
    """Whether that backend writes elsewhere than to a file system of this host."""
    phases: Mapping[str, SavePhase] = field(default_factory=dict)
    """By name, out of :data:`SAVE_PHASES`; their walls add up to ``wall_s``."""
    cpu_s: Optional[float] = None
    """Of the saving thread, as are the next two."""
    run_delay_s: Optional[float] = None
    blocked_s: Optional[float] = None
    bytes: Optional[int] = None
    """What this rank gave the backend to write; where that was not seen, the size of
    the file, or of all files in the folder."""
    optimizer_bytes: Optional[int] = None
    """Tensors of the optimizer in it."""
    message_hub_bytes: Optional[int] = None
    """Histories of MMEngine's message hub in it, before compression or pickling."""
    held_bytes: Optional[int] = None
    """Memory held meanwhile beyond the model: copies, and the file twice over."""
    workers: Optional[int] = None
    """Loader workers that were alive."""
    workers_busy: Optional[float] = None
    """How many of them were on a core or waiting for one, mean over the save."""
    workers_cpu_s: Optional[float] = None
    strangers_cpu_s: Optional[float] = None
    """CPU of everybody but this process and its workers; of other ranks too."""
    cpu_pressure_pct: Optional[float] = None
    """Share of the save in which some task waited for a core (PSI ``some``)."""
    io_pressure_pct: Optional[float] = None
    memory_pressure_pct: Optional[float] = None
    dirty_bytes: Optional[int] = None
    """Pages of the host that were still to be written when it ended."""
    writeback_bytes: Optional[int] = None
    """Pages of the host that were on their way to storage when it ended."""
    major_faults: Optional[int] = None
    """Of the training process, from storage or swap."""
    swap_in_bytes: Optional[int] = None
    swap_out_bytes: Optional[int] = None
    ready_before: Optional[int] = None
    """Batches that stood ready when it began."""
    ready_after: Optional[int] = None
    """Batches that stood ready when it ended."""
    error: Optional[str] = None
    """Type of the exception that ended it."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Why a figure is missing, by field."""


@dataclass(frozen=True)
class SaveAftermathRecord:
    """The waits for data after one save, while what was loaded meanwhile lasted."""

    iteration: int
    """That of the save."""
    iterations: int
    """Looked at after it: as many as batches can be made ahead, or fewer when another
    save, a validation, the end of an epoch or of the run came first; 0 when one came at
    once, so that nothing was won back."""
    waits_s: float
    """Their waits for data."""
    usual_wait_s: Optional[float] = None
    """Mean wait for data of the iterations before, outside such spans; ``None`` when
    those were fewer than the workers, whose batches come in bursts."""
