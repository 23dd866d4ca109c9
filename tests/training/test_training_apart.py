"""Tests two real ranks of a process group whose Runner has no launcher."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mmgpu_hooks.commands.read_runs import read_run
from training.detection import environ
from training.toy import evidence_of


@pytest.fixture(scope='module')
def apart(tmp_path_factory):
    """Folder of the training, with its output in ``log.txt``."""
    folder = tmp_path_factory.mktemp('apart')
    command = [sys.executable, '-m', 'torch.distributed.run', '--standalone']
    command += ['--nproc_per_node=2', '-m', 'training.apart', str(folder)]
    done = subprocess.run(
        command, env=environ(), capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (folder / 'log.txt').write_text(done.stdout + done.stderr)
    return folder


def test_the_summary_says_that_the_ranks_train_apart(apart):
    log = ' '.join((apart / 'log.txt').read_text().split())
    assert log.count(' verdict ') == 1
    assert 'The ranks train apart: the model is not wrapped' in log
    assert 'The slowest rank is unknown' not in log
    for name in ('gpu_efficiency.jsonl', 'gpu_efficiency_rank1.jsonl'):
        evidence = evidence_of(apart, name)
        assert evidence.run.is_model_wrapped is False
        assert len(evidence.intervals) == 12


def test_no_rank_is_called_slow_once_both_have_ended(apart):
    ranks = read_run(apart).ranks
    assert ranks is not None
    assert [row.rank for row in ranks.rows] == [0, 1]
    assert (ranks.slowest, ranks.lost_s) == (None, None)
    assert '--launcher pytorch' in ranks.why


def test_the_summary_judges_the_rank_that_recommend_judges(apart):
    log = ' '.join((apart / 'log.txt').read_text().split())
    assert ' verdict Rank 1: Data-bound' in log
    assert read_run(apart).run.meta.rank == 1
