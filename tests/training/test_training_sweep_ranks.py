"""``torchrun tools/sweep.py``: each trial trains on two real ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mmgpu_hooks.schema.reader import read_evidence
from mmgpu_hooks.schema.run_folder import read_run_folder
from training.detection import environ
from training.trial_toys import processes_of, write_config

TOOL = Path(__file__).resolve().parents[2] / 'tools' / 'sweep.py'


def sweep(config: Path) -> dict[str, Any]:
    folder = config.parent / 'w'
    command = [sys.executable, '-m', 'torch.distributed.run', '--standalone']
    command += ['--nproc_per_node=2', str(TOOL), str(config), '--format', 'json']
    command += ['--num-workers', '0', '--seconds', '0.5', '--work-dir', str(folder)]
    done = subprocess.run(command, env=environ(), capture_output=True, timeout=150)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    assert processes_of(config.parent) == []
    # rank 0 alone has an answer
    body: dict[str, Any] = json.loads(done.stdout)
    return body


@pytest.mark.slow
def test_each_trial_trains_on_as_many_ranks(tmp_path: Path) -> None:
    body = sweep(write_config(tmp_path, step_s=0.01, epochs=1))
    (row,) = body['rows']
    assert (body['ranks'], row['status'], row['error']) == (2, 'completed', None)
    # two images on each of two ranks
    assert row['images_per_s'] == pytest.approx(4 / row['iter_s']['value'], rel=0.2)
    first = read_run_folder(Path(row['folder'])).evidence
    assert first is not None
    for rank, path in enumerate((first, first.with_stem(f'{first.stem}_rank1'))):
        run = read_evidence(path).run
        assert (run.rank, run.world_size, run.host.ranks_on_host) == (rank, 2, 2)


@pytest.mark.slow
def test_a_rank_without_memory_is_the_reason(tmp_path: Path) -> None:
    config = write_config(tmp_path, dataset='training.trial_toys.Rank1Dataset')
    (row,) = sweep(config)['rows']
    assert row['status'] == 'out_of_memory'
    assert row['error'] == 'rank 1: MemoryError: no room on rank 1'
