"""Finds a task that srun bound to fewer CPUs than SLURM gave, and the remedy."""

from __future__ import annotations

from dataclasses import dataclass

from mmgpu_hooks.schema.recorded import HostLimits
from mmgpu_hooks.schema.text import Text, phrase


@dataclass(frozen=True)
class NarrowStart:
    """Task that SLURM gave more CPUs than srun lets it use."""

    bound_cpus: int
    """Number of CPUs to which srun bound the SLURM task."""
    given_cpus: int
    """Number of CPUs that SLURM gave the task."""
    tasks: int
    """Number of tasks of the SLURM job step, on all nodes."""
    mended_cores: float
    """Usable cores of a rank once srun binds its task to all CPUs that SLURM gave."""

    @property
    def command(self) -> str:
        """Command that starts the training with all CPUs, in the place of ``srun``.

        With numbers, because a variable that srun reads differs between versions of
        SLURM. Without ``--ntasks`` an exclusive job would start the program several
        times; where there are several tasks, their number is the user's.
        """
        alone = ' --ntasks=1' if self.tasks == 1 else ''
        return f'srun{alone} --cpus-per-task={self.given_cpus} --cpu-bind=cores'

    @property
    def fact(self) -> Text:
        """Clause that says to how few CPUs ``srun`` bound the SLURM task."""
        return phrase(
            'srun bound this task to {bound_cpus} of the {given_cpus:d} that SLURM '
            'gave it',
            self,
        )

    @property
    def cure(self) -> Text:
        """Advice for the user: the command that gives the SLURM task all its CPUs.

        A batch script itself is never narrowed.
        """
        if self.tasks == 1:
            return phrase(
                'Start it with "{command} ...", or without srun in the batch script.',
                command=self.command,
            )
        return phrase('Start it with "{command} ...".', command=self.command)


def find_narrow_start(host: HostLimits) -> NarrowStart | None:
    """Finds how srun narrowed the CPUs of a run; ``None`` if it did not."""
    given, bound = host.slurm_given_cpus, host.slurm_bound_cpus
    if given is None or bound is None or host.mended_cores is None:
        return None
    return NarrowStart(bound, given, host.slurm_tasks or 1, host.mended_cores)
