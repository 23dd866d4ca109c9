"""Tests trainings under a real SLURM: recorded cores, and their findings."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from fakes.cluster import Cluster
from training.toy import evidence_of
from training.trial_toys import HOOKED, write_config

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(os.cpu_count() != 2, reason='the cores are those of two CPUs'),
]

MENDED = 'srun --ntasks=1 --cpus-per-task=2 --cpu-bind=cores'
MASTER = 'MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + $$ % 20000))'
BY_TASK = (
    f'export {MASTER}; srun bash -c "RANK=\\$SLURM_PROCID WORLD_SIZE=\\$SLURM_NTASKS '
    'LOCAL_RANK=\\$SLURM_LOCALID exec '
)


def write_busy_config(folder: Path) -> Path:
    """Writes a config whose loading needs as much CPU time as the step sleeps."""
    return write_config(
        folder,
        dataset='training.bound.BusyDataset',
        **{'item_s': 0.008, 'step_s': 0.015, 'length': 192, 'epochs': 1},
        more=HOOKED,
    )


def train(cluster: Cluster, folder: Path, options: str, front: str) -> Path:
    """Trains in a SLURM job; returns the run's work_dir."""
    config, work_dir = write_busy_config(folder), folder / 'run'
    line = f'{front} {sys.executable} -m training.bound {config} {work_dir}'
    cluster.run_job(folder, options.split(), line, limit_s=120)
    return work_dir


@pytest.mark.slow
def test_a_training_that_srun_narrowed_says_so_and_how_to_mend_it(
    cluster, tmp_path, ask
):
    run = train(cluster, tmp_path, '-c2 --hint=nomultithread', 'srun')
    host = evidence_of(run).run.host
    assert (host.affinity_cpus, host.slurm_cpus, host.usable_cores) == (1, 2, 1.0)
    answer = ask('recommend', run, '--dry-run')
    found = {finding['code']: finding['detail'] for finding in answer['findings']}
    assert '1 CPU of the 2 that SLURM gave it' in found['MG117']
    assert f'Start it with "{MENDED} ..."' in found['MG117']
    mended = answer['mended_start']
    assert (mended['command'], mended['cores']) == (MENDED, 2.0)
    assert mended['predicted_iter_s'] > 0
    # what a file gets is for the start as it was, unless it is said to be mended
    new = {change['key']: change['new'] for change in answer['changes']}
    assert new.get('train_dataloader.num_workers', 0) <= 1
    answer = ask('recommend', run, '--dry-run', '--cores', '2')
    assert 'mended_start' not in answer
    assert answer['changes'] == mended['changes']
    assert '2 usable cores for each rank (--cores); the run had 1' in answer['notes'][0]
    assert 'bound by srun to 1 of 2 cores' in (tmp_path / 'job.out').read_text()


@pytest.mark.slow
def test_the_printed_line_gives_the_cores_that_it_promises(cluster, tmp_path, ask):
    run = train(cluster, tmp_path, '-c2 --hint=nomultithread', MENDED)
    assert evidence_of(run).run.host.usable_cores == 2.0
    answer = ask('recommend', run, '--dry-run')
    assert 'MG117' not in {finding['code'] for finding in answer['findings']}
    assert 'mended_start' not in answer


@pytest.mark.slow
@pytest.mark.parametrize(
    ('options', 'front', 'cores', 'is_narrow'),
    [
        ('-n2', BY_TASK, 1.0, False),
        ('-n2 -c1', BY_TASK, 1.0, False),
        ('-n1 -c2', 'srun TORCHRUN', 1.0, False),
        ('--exclusive --ntasks-per-node=1', 'srun TORCHRUN', 1.0, False),
        ('-n1 -c2 --hint=nomultithread', 'srun TORCHRUN', 0.5, True),
        ('-n1 -c2 --hint=nomultithread', f'{MENDED} TORCHRUN', 1.0, False),
        ('-n2 -c1', 'TORCHRUN', 1.0, False),
    ],
)
def test_two_ranks_have_a_core_each(
    cluster, tmp_path, options, front, cores, is_narrow
):
    torchrun = '-m torch.distributed.run --standalone --nproc-per-node=2'
    front = front.replace('TORCHRUN', f'{sys.executable} {torchrun}')
    program = f'-m training.ranks {tmp_path}'
    if front.startswith('export'):
        line = f'{front}{sys.executable} {program}"'
    else:
        line = f'{front} {program}'
    cluster.run_job(tmp_path, options.split(), line, limit_s=150)
    for name in ('gpu_efficiency.jsonl', 'gpu_efficiency_rank1.jsonl'):
        host = evidence_of(tmp_path / 'with', name).run.host
        assert (host.ranks_on_host, host.usable_cores) == (2, cores)
        assert host.mended_cores == (1.0 if is_narrow else None)
