"""A start that srun bound to fewer CPUs than SLURM gave, and the line that mends it."""

from __future__ import annotations

from dataclasses import dataclass

from mmgpu_hooks.schema.figures import plural
from mmgpu_hooks.schema.recorded import HostLimits


@dataclass(frozen=True)
class NarrowStart:
    """A task that SLURM gave more CPUs than srun lets it use."""

    bound_cpus: int
    """In the mask that srun set for it."""
    given_cpus: int
    """That SLURM gave it."""
    tasks: int
    """Of the step, on all nodes."""
    mended_cores: float
    """Usable cores of a rank whose start is mended."""

    @property
    def command(self) -> str:
        """What to write in the place of ``srun``.

        With numbers, because a variable that srun reads differs between versions of
        SLURM. Without ``--ntasks`` an exclusive job would start the program several
        times; where there are several tasks, their number is the user's.
        """
        alone = ' --ntasks=1' if self.tasks == 1 else ''
        return f'srun{alone} --cpus-per-task={self.given_cpus} --cpu-bind=cores'

    @property
    def fact(self) -> str:
        """What was found, as a clause."""
        bound = plural(self.bound_cpus, 'CPU')
        given = f'the {self.given_cpus} that SLURM gave it'
        return f'srun bound this task to {bound} of {given}'

    @property
    def cure(self) -> str:
        """What to type, as a clause; a batch script itself is never narrowed."""
        other = ', or without srun in the batch script' if self.tasks == 1 else ''
        return f'start it with "{self.command} ..."{other}'


def find_narrow_start(host: HostLimits) -> NarrowStart | None:
    """The start of a run whose CPUs srun narrowed; ``None`` of any other."""
    given, bound = host.slurm_given_cpus, host.slurm_bound_cpus
    if given is None or bound is None or host.mended_cores is None:
        return None
    return NarrowStart(bound, given, host.slurm_tasks or 1, host.mended_cores)
