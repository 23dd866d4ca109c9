"""Tests two real ranks on one host, started by torchrun."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from mmgpu_hooks.schema.run import read_evidence
from mmgpu_hooks.schema.run_folder import evidence_name
from training.detection import environ
from training.toy import evidence_of
from training.validating_ranks import LATE_S, METRIC_S


@pytest.fixture(scope='module')
def ranks(tmp_path_factory):
    """Folders of a training with and without the hook."""
    folder = tmp_path_factory.mktemp('ranks')
    command = [sys.executable, '-m', 'torch.distributed.run', '--standalone']
    command += ['--nproc_per_node=2', '-m', 'training.ranks', str(folder)]
    done = subprocess.run(
        command, env=environ(), capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (folder / 'log.txt').write_text(done.stdout + done.stderr)
    return {hook: folder / hook for hook in ('with', 'without')}


@pytest.mark.slow
@pytest.mark.parametrize('killed', [0, 1])
def test_why_names_the_rank_that_was_killed(tmp_path, ask, killed):
    command = [sys.executable, '-m', 'torch.distributed.run', '--standalone']
    command += ['--nproc_per_node=2', '-m', 'training.ranks', str(tmp_path), 'endless']
    with (tmp_path / 'console.txt').open('w') as console:
        launcher = subprocess.Popen(
            command, env=environ(), stdout=console, stderr=subprocess.STDOUT
        )
    pid = None
    try:
        until = time.monotonic() + 60
        while pid is None and time.monotonic() < until:
            time.sleep(0.2)
            for path in tmp_path.glob(f'*/vis_data/{evidence_name(killed)}'):
                if path.read_text().count('"kind":"interval"') > 2:
                    pid = read_evidence(path).run.pid
        assert pid is not None, (tmp_path / 'console.txt').read_text()[-3000:]
        # a launcher that sees it first ends the other one, too, without a record
        launcher.send_signal(signal.SIGSTOP)
        os.kill(pid, signal.SIGKILL)
        (other,) = tmp_path.glob(f'*/vis_data/{evidence_name(1 - killed)}')
        until = time.monotonic() + 60
        while read_evidence(other).end is None and time.monotonic() < until:
            time.sleep(0.2)
        launcher.send_signal(signal.SIGCONT)
        assert launcher.wait(60) == 1
    finally:
        launcher.send_signal(signal.SIGCONT)
        launcher.terminate()
        launcher.wait()
    alone = ask('why', tmp_path / 'console.txt')
    assert alone['rank'] == killed and alone['cause'] in ('oom_host', 'rank_lost')
    for words in ([tmp_path], [tmp_path, '--log', tmp_path / 'console.txt']):
        answer = ask('why', *words)
        assert (answer['cause'], answer['rank']) == ('rank_lost', killed)


def test_each_rank_leaves_its_own_evidence(ranks):
    for rank, name in enumerate(('gpu_efficiency.jsonl', 'gpu_efficiency_rank1.jsonl')):
        evidence = evidence_of(ranks['with'], name)
        assert (evidence.run.rank, evidence.run.world_size) == (rank, 2)
        assert (evidence.end.status, evidence.end.iterations) == ('completed', 12)
        assert sum(record.images or 0 for record in evidence.intervals) == 24
        assert evidence.run.loader.batches_per_epoch == 12


def test_ranks_share_the_cores_of_the_host(ranks):
    for name in ('gpu_efficiency.jsonl', 'gpu_efficiency_rank1.jsonl'):
        host = evidence_of(ranks['with'], name).run.host
        assert host.ranks_on_host == 2
        limits = [len(os.sched_getaffinity(0)), host.cgroup_cpu_cores or 1e9]
        assert host.usable_cores == pytest.approx(min(limits) / 2)


def test_of_a_runner_rank_0_alone_saves(ranks):
    first = evidence_of(ranks['with'])
    assert [save.name for save in first.save_records] == ['iter_6.pth', 'iter_12.pth']
    assert first.save_records[0].backend == 'LocalBackend'
    second = evidence_of(ranks['with'], 'gpu_efficiency_rank1.jsonl')
    assert (second.save_records, second.sources_off) == ((), ())
    assert second.end is not None and second.end.saves == 0


def test_rank_0_alone_logs_one_summary(ranks):
    log = (ranks['with'].parent / 'log.txt').read_text()
    assert log.count('  verdict    ') == 1


def test_no_collective_is_added_and_no_loss_changed(ranks):
    for rank in (0, 1):
        calls = [
            (ranks[hook] / f'collectives_{rank}.txt').read_text().split()
            for hook in ('with', 'without')
        ]
        assert calls[0] == calls[1]
        losses = [
            json.loads((ranks[hook] / f'losses_{rank}.json').read_text())
            for hook in ('with', 'without')
        ]
        assert len(losses[0]) == 12
        assert losses[0] == losses[1]


@pytest.mark.slow
def test_of_a_validation_the_wait_for_other_ranks_is_apart(tmp_path):
    command = [sys.executable, '-m', 'torch.distributed.run', '--standalone']
    command += ['--nproc_per_node=2', '-m', 'training.validating_ranks', str(tmp_path)]
    done = subprocess.run(
        command, env=environ(), capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    ranks = [evidence_of(tmp_path, evidence_name(rank)) for rank in (0, 1)]
    (first,), (second,) = (rank.validations for rank in ranks)
    # rank 0 waits for the late one, and that one for the metric of rank 0
    assert first.parts_s['rank_wait'] == pytest.approx(LATE_S, abs=0.15)
    assert second.parts_s['rank_wait'] == pytest.approx(METRIC_S, abs=0.15)
    assert first.parts_s['metric'] == pytest.approx(METRIC_S, abs=0.1)
    assert second.metrics_s is None
    assert second.process_s['LateMetric'] == pytest.approx(LATE_S, abs=0.1)
    for record in (first, second):
        assert record.parts_s['gather'] < 0.2
        assert sum(record.parts_s.values()) == pytest.approx(record.wall_s)
