"""Which ranks share this host, from what launchers leave in the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping

_LOCAL_RANK = ('LOCAL_RANK', 'OMPI_COMM_WORLD_LOCAL_RANK', 'MPI_LOCALRANKID')
_LOCAL_WORLD = ('LOCAL_WORLD_SIZE', 'OMPI_COMM_WORLD_LOCAL_SIZE', 'MPI_LOCALNRANKS')


def count_ranks_on_host(world_size: int, environ: Mapping[str, str]) -> int:
    """Ranks that share this host.

    Args:
        world_size: Ranks in all.
        environ: Where launchers say how many they started here.

    Returns:
        What the launcher said; without one, all ranks are taken to be here, which
        at worst advises too few workers and never too many.
    """
    counts = [environ.get(name, '') for name in _LOCAL_WORLD]
    if 'SLURM_PROCID' in environ:
        counts.append(_slurm_tasks_here(environ))
    for count in counts:
        if count.isdigit() and int(count) > 0:
            return min(int(count), world_size)
    return world_size


def _slurm_tasks_here(environ: Mapping[str, str]) -> str:
    """This node's entry of a list such as ``8(x3),4``; '' when there is none."""
    text = environ.get('SLURM_STEP_TASKS_PER_NODE', '')
    tasks: list[str] = []
    for count, times in re.findall(r'(\d+)(?:\(x(\d+)\))?', text):
        tasks += [count] * int(times or 1)
    node = environ.get('SLURM_NODEID', '0')
    index = int(node) if node.isdigit() else 0
    if index < len(tasks):
        return tasks[index]
    return environ.get('SLURM_NTASKS_PER_NODE', '')
