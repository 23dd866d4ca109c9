"""Tests real trainings whose main thread is bound to one CPU in various ways."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mmgpu_hooks.measure.host import read_host_limits
from training.detection import environ
from training.toy import evidence_of
from training.trial_toys import HOOKED, write_config

pytestmark = pytest.mark.skipif(
    not hasattr(os, 'sched_getaffinity')
    or (read_host_limits(ranks_on_host=1).usable_cores or 0.0) < 2.0,
    reason='needs Linux and two usable cores',
)

IMPORT = "custom_imports = dict(imports=['training.bind_here'])\n"

FIRST = str(min(os.sched_getaffinity(0))) if hasattr(os, 'sched_getaffinity') else '0'
PYTHON = [sys.executable, '-m']
TORCHRUN = [*PYTHON, 'torch.distributed.run', '--standalone', '-m']
AFTER_START, TORCHRUN_BOUND, TASKSET = 'after start', 'torchrun', 'taskset'
BIND = {'OMP_PROC_BIND': 'true'}

CASES: dict[str, tuple[list[str], dict[str, str]]] = {
    'OMP_PROC_BIND': (PYTHON, BIND),
    # numpy's own thread lives at the import that binds the main one
    AFTER_START: (PYTHON, {'OPENBLAS_NUM_THREADS': '2'}),
    TORCHRUN_BOUND: (TORCHRUN, BIND),
    TASKSET: (['taskset', '-c', FIRST, 'sh', '-c', '"$@"; exit $?', 'sh', *PYTHON], {}),
}


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
    """Runs all trainings once; gives each one's folder, with output in ``log.txt``."""
    folder = tmp_path_factory.mktemp('bound')

    def train(name: str) -> Path:
        command, variables = CASES[name]
        work_dir = folder / name.replace(' ', '_')
        work_dir.mkdir()
        config = write_config(
            work_dir,
            dataset='training.bound.BusyDataset',
            num_workers=1,
            item_s=0.008,
            length=96,
            epochs=1,
            more=HOOKED + IMPORT * (name == AFTER_START),
        )
        done = subprocess.run(
            [*command, 'training.bound', str(config), str(work_dir)],
            env={**environ(), **variables},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        (work_dir / 'log.txt').write_text(done.stdout + done.stderr)
        return work_dir

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(CASES, pool.map(train, CASES)))


def find_codes(ask: Any, work_dir: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the answer of ``mmgpu recommend``, and its findings by code."""
    answer = ask('recommend', work_dir, '--dry-run')
    return answer, {
        finding['code']: finding['detail'] for finding in answer['findings']
    }


@pytest.mark.parametrize('name', ['OMP_PROC_BIND', TORCHRUN_BOUND])
def test_what_bound_the_training_is_named_and_costs_it_no_cores(runs, name, ask):
    host, all_cpus = evidence_of(runs[name]).run.host, len(os.sched_getaffinity(0))
    assert host.unbound_cpus == all_cpus
    assert 0 < (host.affinity_cpus or 0) < all_cpus
    assert host.usable_cores == read_host_limits(ranks_on_host=1).usable_cores
    answer, findings = find_codes(ask, runs[name])
    assert 'OMP_PROC_BIND bound it' in findings['MG113']
    assert f'to {host.affinity_cpus} of {all_cpus} CPUs' in findings['MG113']
    (cure,) = (advice for advice in answer['advice'] if 'MG113' in advice)
    assert f'{host.usable_cores:g} usable cores' in cure
    assert ' 1 usable core' not in json.dumps(answer)
    assert 'MG113' in (runs[name] / 'log.txt').read_text()


def test_a_binding_that_nothing_explains_is_said_and_no_more_cores_are_promised(
    runs, ask
):
    host, all_cpus = (
        evidence_of(runs[AFTER_START]).run.host,
        len(os.sched_getaffinity(0)),
    )
    assert (host.unbound_cpus, host.wider_thread_cpus) == (None, all_cpus)
    assert host.usable_cores == host.affinity_cpus == 1
    answer, findings = find_codes(ask, runs[AFTER_START])
    assert f'another thread of the process on {all_cpus}' in findings['MG113']
    assert 'Who bound it, and whether before the start, is unknown' in findings['MG113']
    assert not [advice for advice in answer['advice'] if 'MG113' in advice]
    assert 'MG113' in (runs[AFTER_START] / 'log.txt').read_text()


def test_a_training_that_was_started_on_one_cpu_has_one_core(runs, ask):
    host = evidence_of(runs[TASKSET]).run.host
    assert (host.affinity_cpus, host.unbound_cpus, host.usable_cores) == (1, None, 1.0)
    assert 'MG113' not in find_codes(ask, runs[TASKSET])[1]
