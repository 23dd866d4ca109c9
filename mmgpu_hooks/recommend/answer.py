"""Record of ``mmgpu recommend``'s answer, from which every output format is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema.judged import (
    Diagnosis,
    JobEnd,
    MendedStart,
    NextJob,
    Recommendation,
    SavedHours,
    TrainingEnd,
)
from mmgpu_hooks.schema.run import RanksSummary


@dataclass(frozen=True)
class Answer:
    """Answer of ``mmgpu recommend``: verdict, recommended settings, new config."""

    run_path: str
    """Path of the evidence file that the answer was computed from."""
    diagnosis: Diagnosis
    recommendation: Recommendation
    summary: Run
    config: str | None = None
    """Path of the config that the recommended settings are to be written into."""
    output: str | None = None
    """Path of the new config that was written; ``None`` if no file was written."""
    backup: str | None = None
    diff: str = ''
    ranks: RanksSummary | None = None
    """Comparison of all ranks of the run; ``None`` when the run has one rank."""
    cfg_options: str | None = None
    """Command that trains the original config with the recommended settings."""
    error: str | None = None
    """Reason why the rewrite of the config was refused."""
    notes: tuple[str, ...] = field(default=())
    fitted: Mapping[str, int | None] = field(default_factory=dict)
    """Batch size, by path, of each run to which step time and memory are fitted.

    Empty when one run was asked for."""
    mended: MendedStart | None = None
    """Best settings and speed if srun gave each SLURM task all of its CPUs.

    ``None`` where srun narrowed none, or where ``--cores`` says that it is mended."""
    next_job: NextJob | None = None
    """Number of CPUs to ask SLURM for next; ``None`` if the run was no SLURM job."""
    ending: TrainingEnd | None = None
    """Forecast of the end of a run that has not completed.

    ``None`` where it has, or that is unknown."""
    last_sign: datetime | None = None
    """Local time of the newest record if the run still trains, else ``None``."""
    job_end: JobEnd | None = None
    """Time at which SLURM ends the job too early, and what is then left untrained.

    ``None`` where there is none, or it is unknown."""
    saved_hours: tuple[SavedHours, ...] = ()
    """Hours that the recommended changes save, one entry per group of changes."""
