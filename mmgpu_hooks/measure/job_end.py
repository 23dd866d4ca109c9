"""Reads the time at which SLURM ends a job, from the environment or ``squeue``."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping

from mmgpu_hooks.measure.clock import seconds_until

_LIMIT_S = 5.0
"""Longest wait for an answer of SLURM's controller, in seconds."""
_FARTHEST_S = 300 * 86400.0
"""Seconds until a job's end above which that end does not count as a time limit."""


def parse_end_unix_s(text: str) -> float | None:
    """Parses SLURM's text of a job's end, to seconds since 1970.

    Returns:
        ``None`` without a limit.
    """
    if not re.fullmatch(r'\d{9,12}', text.strip(), re.ASCII):
        return None
    end_s = float(text)
    return end_s if seconds_until(end_s) < _FARTHEST_S else None


def ask_end_unix_s(job: int) -> float | None:
    """Asks SLURM's controller for a job's end, in seconds since 1970; takes up to 5 s.

    Returns:
        ``None`` without a limit, and where SLURM is not there or does not answer.
    """
    try:
        done = subprocess.run(
            ('squeue', '-h', '-j', str(job), '-o', '%e'),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors='replace',
            timeout=_LIMIT_S,
            check=False,
            env={**os.environ, 'SLURM_TIME_FORMAT': '%s'},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_end_unix_s(done.stdout)


def read_end_unix_s(environ: Mapping[str, str]) -> float | None:
    """Reads this job's end, in seconds since 1970, from SLURM's environment."""
    return parse_end_unix_s(environ.get('SLURM_JOB_END_TIME', ''))
