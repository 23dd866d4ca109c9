"""Two real ranks on one host, beside a program that burns a core and without it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from mmgpu_hooks.commands.runs import read_run
from mmgpu_hooks.experiment.trial import read_tree_cpu_s
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.verdict import diagnose_run
from mmgpu_hooks.measure.host import read_busy_s
from training.detection import environ

pytestmark = [pytest.mark.slow, pytest.mark.timing]

BURN = 'while True: pass'


def train_ranks(folder: Path, kind: str) -> tuple[Run, float]:
    """Train two ranks.

    Returns:
        The rank that is judged, and the cores that all else on the host used while
        both recorded intervals.
    """
    command = [sys.executable, '-m', 'torch.distributed.run', '--standalone']
    command += ['--nproc_per_node=2', '-m', 'training.busy_ranks', str(folder), kind]
    samples = []
    log = folder / 'log.txt'
    with log.open('w') as out:
        ranks = subprocess.Popen(command, env=environ(), stdout=out, stderr=out)
        try:
            while ranks.poll() is None:
                others_s = read_busy_s() - read_tree_cpu_s(ranks.pid)
                samples.append((time.time(), others_s))
                time.sleep(0.25)
        finally:
            ranks.kill()
    assert ranks.returncode == 0, log.read_text()[-3000:]
    run = read_run(folder).run
    assert (run.run.host.ranks_on_host, len(run.other_ranks)) == (2, 1)
    first, *_, last = run.intervals
    span = [run.run.started_unix_s + one.elapsed_s for one in (first, last)]
    used_s = np.interp(span, *np.array(samples).T)
    return run, float((used_s[1] - used_s[0]) / (span[1] - span[0]))


def find_details(run: Run) -> dict[str, str]:
    return {one.code: one.detail for one in diagnose_run(run).findings}


def test_a_program_that_burns_a_core_is_named_with_its_size(tmp_path):
    with subprocess.Popen([sys.executable, '-c', BURN]) as burner:
        try:
            run, truth = train_ranks(tmp_path, 'cheap')
        finally:
            burner.kill()
    assert run.external_cpu_cores == pytest.approx(truth, rel=0.2)
    said = f'Others used {run.external_cpu_cores:.1f} of '
    assert said in find_details(run)['MG107']
    assert f'other programs {run.external_cpu_cores:.1f}' in ' '.join(
        (tmp_path / 'log.txt').read_text().split()
    )


def test_ranks_alone_are_not_taken_for_other_programs(tmp_path):
    run, truth = train_ranks(tmp_path, 'busy')
    assert run.external_cpu_cores == pytest.approx(truth, abs=0.2)
    assert 'MG107' not in find_details(run)


def test_storage_that_holds_the_workers_of_ranks_leaves_cores_idle(tmp_path):
    run, truth = train_ranks(tmp_path, 'stored')
    assert run.external_cpu_cores == pytest.approx(truth, abs=0.2)
    # storage needs no core: the rule on idle cores leaves it to this one
    found = find_details(run)
    assert 'waiting for storage' in found['MG103']
    assert not found.keys() & {'MG107', 'MG116'}
