"""Names the system that limits a process's CPUs and memory: Docker, SLURM, systemd."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path

_BY_GROUP = {
    'kubernetes': re.compile(r'kubepods'),
    'slurm': re.compile(r'/slurm|slurmstepd|job_\d+'),
    'docker': re.compile(r'docker'),
    'podman': re.compile(r'libpod'),
    'systemd': re.compile(r'\.(?:slice|scope|service)\b'),
}
"""Regex for a control group's name, for each system that makes control groups."""
_BY_FILE = {'docker': '.dockerenv', 'podman': 'run/.containerenv'}


def find_manager(environ: Mapping[str, str], root: Path = Path('/')) -> str | None:
    """Names the system that limits this process's resources, such as ``docker``.

    Args:
        environ: Of the process.
        root: Of the file system; a container's own.

    Returns:
        ``kubernetes``, ``docker``, ``podman``, ``slurm`` or ``systemd``; ``None``
        where nothing says so.
    """
    if 'KUBERNETES_SERVICE_HOST' in environ:
        return 'kubernetes'
    group = ''
    with contextlib.suppress(OSError):
        group = (root / 'proc/self/cgroup').read_text(errors='replace')
    # a job may start containers, whose own limits are tighter
    for manager, name in _BY_FILE.items():
        if (root / name).exists():
            return 'kubernetes' if 'kubepods' in group else manager
    if 'SLURM_JOB_ID' in environ:
        return 'slurm'
    found = (name for name, pattern in _BY_GROUP.items() if pattern.search(group))
    return next(found, None)
