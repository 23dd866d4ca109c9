"""Tests that a verdict becomes a SLURM job's comment, but replaces no user's own."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fakes.cluster import Cluster
from mmgpu_hooks.adviser.job_comment import comment_on_job
from mmgpu_hooks.measure.absent import SourceError
from mmgpu_hooks.schema.recorded import RecommendedChange, VerdictRecord
from training.toy import evidence_of
from training.trial_toys import HOOKED, write_config

pytestmark = pytest.mark.slurm

WORKERS = RecommendedChange(key='train_dataloader.num_workers', old=0, new=8)


def make_verdict(job: int | None, share_pct: float = 54.0) -> VerdictRecord:
    return VerdictRecord(
        verdict='data_bound_workers',
        confidence='high',
        iterations=5000,
        training_hours=1.0,
        ledger_pct={'data_wait': share_pct},
        changes=(WORKERS,),
        slurm_job_id=job,
    )


def start_job(cluster: Cluster, *options: str) -> int:
    """Starts a SLURM job that sleeps; returns its number."""
    ours = ('--parsable', '--output=/dev/null', *options)
    job = cluster.run('sbatch', *ours, text='#!/bin/bash\nexec sleep 60\n')
    cluster.wait_for(job, 'RUNNING')
    return int(job)


def read_comment(cluster: Cluster, job: int) -> str:
    return cluster.run('squeue', '-h', '-j', str(job), '-o', '%k')


@pytest.fixture
def asks(cluster, monkeypatch):
    """Sets the environment so that SLURM's commands find the cluster."""
    for name in ('SLURM_CONF', 'PATH'):
        monkeypatch.setenv(name, cluster.environ[name])
    return cluster


def test_the_comment_is_read_back_and_follows_the_newest_verdict(asks):
    job = start_job(asks)
    try:
        assert comment_on_job(make_verdict(job))
        said = 'mmgpu: data-bound 54 %, num_workers 0 -> 8'
        assert read_comment(asks, job) == said
        assert comment_on_job(make_verdict(job, 12.0))
        assert read_comment(asks, job).startswith('mmgpu: data-bound 12 %')
    finally:
        asks.run('scancel', str(job))
    asks.wait_for(str(job), 'CANCELLED')
    # it is too late then
    with pytest.raises(SourceError, match=r'Invalid job id|already finished'):
        comment_on_job(make_verdict(job))


def test_a_comment_of_the_users_own_stays(asks):
    job = start_job(asks, '--comment=project 12')
    try:
        assert not comment_on_job(make_verdict(job))
        assert read_comment(asks, job) == 'project 12'
    finally:
        asks.run('scancel', str(job))


def test_without_slurm_or_its_answer_the_reason_is_said_in_time(tmp_path, monkeypatch):
    assert not comment_on_job(make_verdict(None))
    monkeypatch.setenv('PATH', str(tmp_path))
    with pytest.raises(SourceError, match='expected squeue of SLURM, found none'):
        comment_on_job(make_verdict(7))
    slow = tmp_path / 'squeue'
    slow.write_text('#!/bin/sh\nexec /bin/sleep 60\n')
    slow.chmod(0o755)
    began_s = time.monotonic()
    with pytest.raises(SourceError, match='squeue: no answer in time'):
        comment_on_job(make_verdict(7), limit_s=0.3)
    assert time.monotonic() - began_s < 5


@pytest.mark.slow
@pytest.mark.skipif(os.cpu_count() != 2, reason='the job asks for both of two CPUs')
@pytest.mark.parametrize(
    ('options', 'comment'),
    [
        pytest.param('-c2', 'mmgpu: data-bound', id='empty'),
        pytest.param('-c2 --comment=mine', 'mine', id="the user's own"),
    ],
)
def test_a_training_in_a_job_comments_on_it(cluster, tmp_path, options, comment, ask):
    config = write_config(
        tmp_path,
        dataset='training.bound.BusyDataset',
        **{'item_s': 0.008, 'step_s': 0.015, 'length': 192, 'epochs': 1},
        more=HOOKED.replace('interval=8', 'slurm_comment=True'),
    )
    line = f'{sys.executable} -m training.bound {config} {tmp_path / "run"}\n'
    # SLURM takes none once the job has ended, and forgets none that it has
    show = 'scontrol show job -o $SLURM_JOB_ID'
    out = cluster.run_job(tmp_path, options.split(), f'{line}{show}', limit_s=120)
    job = out.partition('JobId=')[2].split()[0]
    assert out.partition(' Comment=')[2].startswith(comment)
    evidence = evidence_of(tmp_path / 'run')
    assert evidence.run.slurm_job_id == int(job)
    verdict = (Path(evidence.path).read_text().splitlines())[-1]
    assert f'"slurm_job_id":{job}' in verdict
    # and what the next one should ask for
    found = ask('recommend', tmp_path / 'run', '--dry-run')['next_job']
    assert found['asked_cpus'] == 2
    assert 1 <= found['cpus_per_task'] <= 2


def read_verdicts(work_dir: Path) -> list[dict[str, Any]]:
    """Returns the verdict records written to a job's evidence so far."""
    texts = map(Path.read_text, work_dir.glob('*/vis_data/gpu_efficiency.jsonl'))
    lines = [line for text in texts for line in text.splitlines(keepends=True)]
    # the last one may be half written
    records = [json.loads(line) for line in lines if line.endswith('\n')]
    return [record for record in records if record['kind'] == 'verdict']


@pytest.mark.slow
@pytest.mark.parametrize(
    ('options', 'comment'),
    [
        pytest.param([], 'mmgpu: data-bound', id='empty'),
        pytest.param(['--comment=mine'], 'mine', id="the user's own"),
    ],
)
def test_a_job_that_is_cancelled_has_its_hourly_verdict(
    cluster, tmp_path, options, comment, ask
):
    config = write_config(
        tmp_path,
        **{'item_s': 0.015, 'step_s': 0.01, 'length': 72},
        more=HOOKED.replace('interval=8', 'interval=8, slurm_comment=True'),
    )
    out, work_dir = tmp_path / 'job.out', tmp_path / 'run'
    line = f'{sys.executable} -m training.hourly {config} {work_dir}'
    ours = ['--parsable', f'--output={out}', f'--chdir={tmp_path}', *options]
    job = cluster.run('sbatch', *ours, text=f'#!/bin/bash\n{line}\n')
    try:
        until_s = time.monotonic() + 120
        while not read_verdicts(work_dir):
            state = cluster.read_state(job)
            is_late = time.monotonic() > until_s
            assert state in ('PENDING', 'RUNNING') and not is_late, out.read_text()
            time.sleep(0.1)
        # the process that judges comments before the hook finds it over
        assert read_comment(cluster, int(job)).startswith(comment)
    finally:
        cluster.run('scancel', job)
    cluster.wait_for(job, 'CANCELLED')
    shown = cluster.run('scontrol', 'show', 'job', '-o', job)
    assert shown.partition(' Comment=')[2].startswith(comment)
    verdict, *_ = read_verdicts(work_dir)
    assert verdict['verdict'] == 'data_bound_workers'
    assert verdict['changes'][0]['key'] == 'train_dataloader.num_workers'
    assert verdict['slurm_job_id'] == int(job)
    assert 'is_final' not in verdict
    # and among many runs it is one with a verdict
    (row,) = ask('runs', work_dir)['rows']
    assert (row['verdict'], row['slurm_job_id']) == ('data_bound_workers', int(job))
