"""Tests real ranks on one host, with and without another busy program."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from mmgpu_hooks.commands.read_runs import read_run
from mmgpu_hooks.experiment.trial import read_tree_cpu_s
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.verdict import diagnose_run
from mmgpu_hooks.measure.host import read_busy_s
from training.detection import environ

pytestmark = [pytest.mark.slow, pytest.mark.timing]

BURN = 'while True: pass'

COUNTS = [2, 4]
"""Numbers of ranks to train with on one host."""


def train_ranks(folder: Path, kind: str, count: int) -> tuple[Run, float]:
    """Trains on some ranks; returns rank 0's run and the cores other programs used.

    Returns:
        The rank that is judged, and the cores that all else on the host used while
        all of them recorded intervals.
    """
    command = [sys.executable, '-m', 'torch.distributed.run', '--standalone']
    command += [f'--nproc_per_node={count}', '-m', 'training.busy_ranks']
    command += [str(folder), kind]
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
    assert (run.meta.host.ranks_on_host, len(run.other_ranks)) == (count, count - 1)
    first, *_, last = run.intervals
    span = [run.meta.started_unix_s + interval.elapsed_s for interval in (first, last)]
    used_s = np.interp(span, *np.array(samples).T)
    return run, float((used_s[1] - used_s[0]) / (span[1] - span[0]))


def find_details(run: Run) -> dict[str, str]:
    return {finding.code: finding.detail for finding in diagnose_run(run).findings}


@pytest.mark.parametrize('count', COUNTS)
def test_a_program_that_burns_a_core_is_named_with_its_size(tmp_path, count):
    with subprocess.Popen([sys.executable, '-c', BURN]) as burner:
        try:
            run, truth = train_ranks(tmp_path, 'cheap', count)
        finally:
            burner.kill()
    assert run.figures.external_cpu_cores == pytest.approx(truth, rel=0.2)
    said = f'Others used {run.figures.external_cpu_cores:.1f} of '
    assert said in find_details(run)['MG107']
    shown = re.search(r'other programs ([\d.]+)', (tmp_path / 'log.txt').read_text())
    assert shown is not None
    assert float(shown[1]) == pytest.approx(run.figures.external_cpu_cores, abs=0.1)


@pytest.mark.parametrize('count', COUNTS)
def test_ranks_alone_are_not_taken_for_other_programs(tmp_path, count):
    run, truth = train_ranks(tmp_path, 'busy', count)
    assert run.figures.external_cpu_cores == pytest.approx(truth, abs=0.2)
    assert 'MG107' not in find_details(run)


@pytest.mark.parametrize('count', COUNTS)
@pytest.mark.parametrize('is_busy', [False, True], ids=['idle', 'busy'])
def test_storage_that_holds_the_workers_of_ranks_is_named(tmp_path, is_busy, count):
    with contextlib.ExitStack() as stack:
        if is_busy:
            burner = subprocess.Popen([sys.executable, '-c', BURN])
            stack.callback(burner.wait)
            stack.callback(burner.kill)
        run, truth = train_ranks(tmp_path, 'stored', count)
    assert run.figures.external_cpu_cores == pytest.approx(truth, abs=0.2)
    # storage needs no core: the rule on idle cores leaves it to this one
    found = find_details(run)
    assert 'waiting for storage' in found['MG103']
    assert 'MG116' not in found
    assert ('MG107' in found) is run.is_busy_host
    assert run.is_busy_host >= is_busy
    assert diagnose_run(run).verdict.name == 'data_bound_storage'
