"""Refuses experiments if srun bound this process to only part of its task's CPUs."""

from __future__ import annotations

from mmgpu_hooks.judge.slurm import find_narrow_start
from mmgpu_hooks.measure.host import read_host_limits
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.text import phrase, sentences


def refuse_narrow_start() -> None:
    """Raises a `UserError` if srun bound this process to part of its task's CPUs."""
    found = find_narrow_start(read_host_limits(ranks_on_host=1))
    if found is not None:
        raise UserError(
            sentences(
                phrase(
                    'expected all CPUs that SLURM gave this task, found that {found}.',
                    found=found.fact,
                ),
                found.cure,
            )
        )
