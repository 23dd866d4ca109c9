"""Tests usable cores for each recorded way to start a SLURM task.

A row has the options of sbatch, what stands in front of the program, the ranks on the
host, and the truth: the cores that a rank may use, and those of a mended start where
srun narrowed it. The affinity and the environment are those that a real SLURM gave.
Run as a script on a machine of two CPUs, this records them anew.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
if __name__ == '__main__':
    sys.path[:0] = [str(ROOT), str(ROOT / 'tests')]

from fakes.cluster import WHY_NOT, Cluster, has_slurm, start_cluster  # noqa: E402
from mmgpu_hooks.experiment import narrow_start  # noqa: E402
from mmgpu_hooks.judge.slurm import find_narrow_start  # noqa: E402
from mmgpu_hooks.measure.host import read_host_limits  # noqa: E402
from mmgpu_hooks.schema.errors import UserError  # noqa: E402
from mmgpu_hooks.schema.recorded import HostLimits  # noqa: E402

STARTS = Path(__file__).with_name('starts.json')
ROWS: dict[str, dict[str, Any]] = json.loads(STARTS.read_text())
NARROW = [name for name, row in ROWS.items() if 'mended' in row]
QUICK = ('plain srun', 'hint', 'exclusive', 'two tasks')
"""Names of the SLURM starts that are tested for real in quick runs."""

NOWHERE = Path('/nowhere')
VARIABLES = (
    'SLURM_CPUS_PER_TASK',
    'SLURM_CPUS_PER_GPU',
    'SLURM_CPUS_ON_NODE',
    'SLURM_CPU_BIND_TYPE',
    'SLURM_CPU_BIND_LIST',
    'SLURM_LOCALID',
    'SLURM_NTASKS',
    'SLURM_STEP_NUM_TASKS',
    'SLURM_STEP_TASKS_PER_NODE',
    'TORCHELASTIC_RUN_ID',
)
SHOW = f"""
import json, os
shown = {{name: os.environ[name] for name in {VARIABLES!r} if name in os.environ}}
if os.environ.get('SLURM_PROCID', '0') == '0':
    cpus = len(os.sched_getaffinity(0))
    print(json.dumps(dict(affinity=cpus, environ=shown)), flush=True)
"""


def find_limits(row: dict[str, Any]) -> HostLimits:
    """Returns host limits that the hook would record for a SLURM start."""
    return read_host_limits(
        ranks_on_host=row['ranks'],
        proc=NOWHERE,
        sys=NOWHERE,
        environ=row['environ'],
        affinity=lambda: frozenset(range(row['affinity'])),
        cpu_count=lambda: 2,
    )


@pytest.mark.parametrize('name', ROWS)
def test_cores_are_those_that_the_start_gave(name):
    row = ROWS[name]
    host = find_limits(row)
    assert host.usable_cores == row['usable']
    assert host.mended_cores == row.get('mended')
    found = find_narrow_start(host)
    assert (found and found.command) == row.get('command')


@pytest.mark.parametrize('name', ROWS)
def test_a_trial_measures_nowhere_but_on_all_its_cpus(name, monkeypatch):
    limits = find_limits(ROWS[name])
    monkeypatch.setattr(narrow_start, 'read_host_limits', lambda **_: limits)
    if name not in NARROW:
        narrow_start.refuse_narrow_start()
        return
    with pytest.raises(UserError, match='1 CPU of the 2 that SLURM gave it') as error:
        narrow_start.refuse_narrow_start()
    assert f'Start it with "{ROWS[name]["command"]} ..."' in str(error.value)


def start(cluster: Cluster, folder: Path, row: dict[str, Any], front: str) -> Any:
    """Starts a real SLURM task; returns its affinity and environment."""
    program = folder / 'show.py'
    program.write_text(SHOW)
    line = f'{front} {sys.executable} {program}'
    if 'inside' not in row:
        return json.loads(cluster.run_job(folder, row['sbatch'].split(), line))
    inner, out = folder / 'inner.sh', folder / 'inner.out'
    inner.write_text(f'#!/bin/bash\n{line}\n')
    out.unlink(missing_ok=True)
    # it waits for the CPUs of the job that submits it
    submit = f'srun sbatch --output={out} {row["sbatch"]} {inner}'
    cluster.run_job(folder, row['inside'].split(), submit)
    until_s = time.monotonic() + 30
    while not (out.exists() and out.read_text().endswith('\n')):
        assert time.monotonic() < until_s
        time.sleep(0.1)
    return json.loads(out.read_text())


@pytest.mark.slurm
@pytest.mark.skipif(os.cpu_count() != 2, reason='the rows are those of two CPUs')
@pytest.mark.parametrize(
    'name',
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
        for name in ROWS
    ],
)
def test_a_real_start_gives_these_cores_and_the_printed_line_all(
    name, cluster, tmp_path
):
    row = ROWS[name]
    host = find_limits({**row, **start(cluster, tmp_path, row, row['front'])})
    assert (host.usable_cores, host.mended_cores) == (row['usable'], row.get('mended'))
    found = find_narrow_start(host)
    if found is not None:
        mended = start(cluster, tmp_path, row, found.command)
        host = find_limits({**row, **mended})
        assert host.usable_cores == row['mended']
        assert find_narrow_start(host) is None


def record() -> None:
    """Records what SLURM shows a task for each way to start it."""
    with tempfile.TemporaryDirectory() as name, start_cluster(Path(name, 's')) as ours:
        for row in ROWS.values():
            row.update(start(ours, Path(name), row, row['front']))
    STARTS.write_text(json.dumps(ROWS, indent=2) + '\n')


if __name__ == '__main__':
    if not has_slurm():
        sys.exit(WHY_NOT)
    record()
