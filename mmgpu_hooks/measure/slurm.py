"""Parses SLURM's environment: CPUs given to a task, and CPUs in srun's mask; no I/O.

``SLURM_CPUS_PER_TASK`` is a request, no limit: what a process may use is its affinity.
``srun`` sets that from a mask, and the mask can be smaller than the request. Whether it
is meant shows in the variables: ``srun -c1`` changes the request, too, and ``taskset``
leaves the mask wider than the affinity.

An exclusive job has more than it asked for. The mask that SLURM says it set is as wide
as the affinity where ``srun`` narrowed the task. What follows from it is recorded at
the start, since the variables are gone afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class SlurmTask:
    """CPUs, tasks and memory stated by SLURM's environment; ``None`` if not stated."""

    requested_cpus: int | None = None
    """Number of CPUs requested for the task: ``SLURM_CPUS_PER_TASK``."""
    bound_cpus: int | None = None
    """Number of CPUs in the mask that srun set; ``None`` if srun set none."""
    node_cpus: int | None = None
    """Number of CPUs of the job step, or job, on this node (``SLURM_CPUS_ON_NODE``)."""
    tasks: int | None = None
    """Number of tasks of the SLURM step on all nodes; ``None`` in a batch script."""
    node_tasks: int = 1
    """Number of tasks of the SLURM step on this node."""
    memory_bytes: int | None = None
    """Bytes of memory of the SLURM job on this node; ``None`` if it is not limited.

    From ``--mem`` or ``--mem-per-cpu``.
    """
    is_rank: bool = True
    """True if each SLURM task is one rank, False if a task launches several ranks."""

    @property
    def given_cpus(self) -> int | None:
        """CPUs requested for the SLURM task, or its share of the step's if unstated."""
        if self.requested_cpus is not None or self.tasks is None:
            return self.requested_cpus
        return self.node_cpus and max(self.node_cpus // self.node_tasks, 1)

    def has_own_mask(self, affinity: int | None, ranks: int) -> bool:
        """True if no other SLURM task runs on the CPUs of this task or batch script.

        Args:
            affinity: CPUs that the process may run on.
            ranks: On the host.
        """
        if affinity is None or self.node_cpus is None:
            return False
        if self.tasks is None:
            return affinity <= self.node_cpus
        sharers = max(ranks if self.is_rank else 1, self.node_tasks)
        return self.bound_cpus == affinity and affinity * sharers <= self.node_cpus

    def is_narrow(self, affinity: int | None) -> bool:
        """True if srun bound the task to fewer CPUs than SLURM gave it.

        Args:
            affinity: CPUs that the process may run on.
        """
        if affinity is None or self.tasks is None or self.bound_cpus != affinity:
            return False
        return (self.given_cpus or 0) > affinity

    def count_ranks(self, ranks: int) -> int:
        """Counts the training ranks that share the CPUs of this SLURM task.

        Args:
            ranks: On the host.
        """
        if self.tasks is None:
            return ranks
        return 1 if self.is_rank else max(ranks // self.node_tasks, 1)

    def mend(self) -> SlurmTask:
        """Returns a copy as if srun had bound the task to all CPUs it was given."""
        given = self.given_cpus or 0
        node_cpus = max(self.node_cpus or 0, given * self.node_tasks)
        return replace(self, bound_cpus=given, node_cpus=node_cpus)


def parse_slurm_task(environ: Mapping[str, str]) -> SlurmTask:
    """Parses this process's SLURM environment variables to a `SlurmTask`."""
    return SlurmTask(
        requested_cpus=_parse_count(environ, 'SLURM_CPUS_PER_TASK'),
        bound_cpus=parse_bound_cpus(environ),
        node_cpus=_parse_count(environ, 'SLURM_CPUS_ON_NODE'),
        tasks=_parse_count(environ, 'SLURM_STEP_NUM_TASKS'),
        node_tasks=parse_most_tasks(environ.get('SLURM_STEP_TASKS_PER_NODE', '')) or 1,
        memory_bytes=_parse_memory_bytes(environ),
        is_rank=parse_rank_is_task(environ),
    )


def parse_job_id(environ: Mapping[str, str]) -> int | None:
    """Returns the id of this process's SLURM job; in a job array, of the array task."""
    text = environ.get('SLURM_JOB_ID', '')
    return int(text) if re.fullmatch(r'\d{1,10}', text, re.ASCII) else None


def _parse_memory_bytes(environ: Mapping[str, str]) -> int | None:
    """Returns the SLURM job's bytes of memory on this node, from variables in MiB."""
    mib = _parse_count(environ, 'SLURM_MEM_PER_NODE')
    each = _parse_count(environ, 'SLURM_MEM_PER_CPU')
    cpus = _parse_count(environ, 'SLURM_CPUS_ON_NODE')
    if mib is None and each is not None and cpus is not None:
        mib = each * cpus
    return None if mib is None else mib * 2**20


def parse_bound_cpus(environ: Mapping[str, str]) -> int | None:
    """Counts the CPUs in the mask that srun set for this task; ``None`` if unset.

    The masks are a list of hexadecimal numbers, one for each task of the node.
    """
    if not environ.get('SLURM_CPU_BIND_TYPE', '').startswith('mask_cpu'):
        return None
    masks = environ.get('SLURM_CPU_BIND_LIST', '').split(',')
    try:
        mask = int(masks[int(environ.get('SLURM_LOCALID', '0')) % len(masks)], 16)
    except ValueError:
        return None
    # int.bit_count is not there on Python 3.9
    return bin(mask).count('1') or None


def parse_most_tasks(text: str) -> int | None:
    """Returns the largest number of tasks on a node, from a list like ``8(x3),4``."""
    tasks = re.findall(r'(?<![x\d])\d{1,9}', text, re.ASCII)
    return max(map(int, tasks), default=0) or None


def parse_rank_is_task(environ: Mapping[str, str]) -> bool:
    """True if SLURM itself started each rank, so that each rank is a task.

    A launcher under ``srun`` starts more ranks than there are tasks; ``torchrun``
    says so by its own variable, too.
    """
    if 'TORCHELASTIC_RUN_ID' in environ:
        return False
    ranks, tasks = environ.get('WORLD_SIZE'), environ.get('SLURM_NTASKS')
    return ranks is None or tasks is None or ranks == tasks


def _parse_count(environ: Mapping[str, str], name: str) -> int | None:
    """Parses an environment variable as a positive whole number; ``None`` otherwise."""
    text = environ.get(name, '')
    is_count = re.fullmatch(r'\d{1,9}', text, re.ASCII)
    return int(text) or None if is_count else None
