"""Runs a real one-node SLURM on this machine for tests marked ``slurm``."""

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
    """True if SLURM's daemons and ``sbatch`` are installed."""
    names = ('slurmctld', 'slurmd', 'sbatch')
    return all(shutil.which(name, path=PATH) for name in names)


@dataclass(frozen=True)
class Cluster:
    """Running one-node SLURM, to which tests submit jobs."""

    environ: Mapping[str, str]
    """Environment variables for commands of SLURM and of this package."""

    def run(self, *words: str | Path, text: str = '') -> str:
        """Runs a SLURM command that must succeed; returns its standard output."""
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
        """Runs a shell line as a SLURM job and returns its output."""
        out = folder / 'job.out'
        script = f'#!/bin/bash\n{line}\n'
        ours = ('--parsable', f'--output={out}', f'--chdir={folder}')
        job = self.run('sbatch', *ours, *options, text=script)
        state = self.wait_for(job, 'COMPLETED', 'FAILED', limit_s=limit_s)
        text = out.read_text()
        assert state == 'COMPLETED', text
        return text

    def read_state(self, job: str) -> str:
        """Returns the state of a job, such as ``RUNNING``."""
        found = self.run('scontrol', 'show', 'job', '-o', job)
        return found.partition('JobState=')[2].split()[0]

    def wait_for(self, job: str, *states: str, limit_s: float = 60) -> str:
        """Waits until a job is in one of the given states; returns that state."""
        until_s = time.monotonic() + limit_s
        while (state := self.read_state(job)) not in states:
            assert time.monotonic() < until_s, f'job {job} is {state}, not {states}'
            time.sleep(0.05)
        return state


def _find_port() -> int:
    """Returns a free TCP port whose next port is free, too."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(('127.0.0.1', 0))
            port: int = first.getsockname()[1]
            with contextlib.suppress(OSError, OverflowError):
                second.bind(('127.0.0.1', port + 1))
                return port


@contextlib.contextmanager
def start_cluster(folder: Path) -> Iterator[Cluster]:
    """Context in which a one-node SLURM runs; ends all its jobs afterwards.

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
    """Running one-node SLURM with this machine's CPUs."""
    if not has_slurm():
        pytest.skip(WHY_NOT)
    with start_cluster(tmp_path_factory.mktemp('slurm')) as started:
        yield started
