"""A start that srun bound to fewer CPUs than SLURM gave, and the line that mends it."""

from __future__ import annotations

from dataclasses import dataclass

from mmgpu_hooks.schema.recorded import HostLimits
from mmgpu_hooks.schema.text import Text, phrase


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
    def fact(self) -> Text:
        """What was found, as a clause."""
        return phrase(
            'srun bound this task to {bound_cpus} of the {given_cpus:d} that SLURM '
            'gave it',
            self,
        )

    @property
    def cure(self) -> Text:
        """What to type; a batch script itself is never narrowed."""
        if self.tasks == 1:
            return phrase(
                'Start it with "{command} ...", or without srun in the batch script.',
                command=self.command,
            )
        return phrase('Start it with "{command} ...".', command=self.command)


def find_narrow_start(host: HostLimits) -> NarrowStart | None:
    """The start of a run whose CPUs srun narrowed; ``None`` of any other."""
    given, bound = host.slurm_given_cpus, host.slurm_bound_cpus
    if given is None or bound is None or host.mended_cores is None:
        return None
    return NarrowStart(bound, given, host.slurm_tasks or 1, host.mended_cores)
