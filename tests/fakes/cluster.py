"""A real SLURM of one node, this machine, for the tests marked ``slurm``."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / 'slurm'
WHY_NOT = 'needs SLURM: apt-get install --no-install-recommends slurm-wlm'

PATH = os.pathsep.join(
    # jobs find our commands, and root alone may have daemons on its path
    [str(Path(sys.executable).parent), os.environ['PATH'], '/usr/sbin']
)


def has_slurm() -> bool:
    """True if SLURM's daemons are installed."""
    names = ('slurmctld', 'slurmd', 'sbatch')
    return all(shutil.which(name, path=PATH) for name in names)


@dataclass(frozen=True)
class Cluster:
    """A SLURM that runs."""

    environ: Mapping[str, str]
    """For its commands, and for ours."""

    def run(self, *words: str | Path, text: str = '') -> str:
        """Standard output of one of SLURM's commands, which must succeed."""
        done = subprocess.run(
            [str(word) for word in words],
            input=text,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def run_job(
        self, folder: Path, options: Sequence[str], line: str, limit_s: float = 60
    ) -> str:
        """What a line of a batch script prints, as a job of its own."""
        out = folder / 'job.out'
        script = f'#!/bin/bash\n{line}\n'
        ours = ('--parsable', f'--output={out}', f'--chdir={folder}')
        job = self.run('sbatch', *ours, *options, text=script)
        state = self.wait_for(job, 'COMPLETED', 'FAILED', limit_s=limit_s)
        text = out.read_text()
        assert state == 'COMPLETED', text
        return text

    def read_state(self, job: str) -> str:
        """State of a job, such as ``RUNNING``."""
        found = self.run('scontrol', 'show', 'job', '-o', job)
        return found.partition('JobState=')[2].split()[0]

    def wait_for(self, job: str, *states: str, limit_s: float = 60) -> str:
        """Wait until a job is in one of some states; which one."""
        until_s = time.monotonic() + limit_s
        while (state := self.read_state(job)) not in states:
            assert time.monotonic() < until_s, f'job {job} is {state}, not {states}'
            time.sleep(0.05)
        return state


def _find_port() -> int:
    """A free port whose successor is free, too."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(('127.0.0.1', 0))
            port: int = first.getsockname()[1]
            with contextlib.suppress(OSError, OverflowError):
                second.bind(('127.0.0.1', port + 1))
                return port


@contextlib.contextmanager
def start_cluster(folder: Path) -> Iterator[Cluster]:
    """Start a SLURM, and end it with all of its jobs.

    Args:
        folder: Gets all files of it.
    """
    # the modules of the tests, and ours
    tests = os.pathsep.join([str(SCRIPTS.parent), str(SCRIPTS.parents[1])])
    inherited = {n: v for n, v in os.environ.items() if not n.startswith('SLURM_')}
    environ = {**inherited, 'PATH': PATH, 'PYTHONPATH': tests}
    starting = {**environ, 'SLURM_PORT': str(_find_port())}
    subprocess.run([SCRIPTS / 'start.sh', folder], env=starting, check=True)
    cluster = Cluster({**environ, 'SLURM_CONF': str(folder / 'slurm.conf')})
    try:
        yield cluster
    finally:
        subprocess.run(
            ['scancel', '-u', str(os.getuid())], env=cluster.environ, check=False
        )
        subprocess.run([SCRIPTS / 'stop.sh', folder], check=True)


@pytest.fixture(scope='session')
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A SLURM with this machine's CPUs."""
    if not has_slurm():
        pytest.skip(WHY_NOT)
    with start_cluster(tmp_path_factory.mktemp('slurm')) as started:
        yield started
