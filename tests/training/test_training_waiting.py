"""A real training whose workers wait for storage, and the one with its own answer."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from mmgpu_hooks.commands.main import main
from training.toy import build_runner, train

CONFIG = """\
train_dataloader = dict(
    batch_size=2, num_workers={}, persistent_workers=True, dataset=dict(type='Toy'))
"""


def train_and_ask(
    folder: Path, workers: int, capsys: pytest.CaptureFixture[str]
) -> dict[str, Any]:
    """The answer of ``mmgpu recommend``; a batch sleeps 100 ms, a step 15 ms."""
    config = folder / f'with_{workers}.py'
    config.write_text(CONFIG.format(workers))
    train(
        build_runner(
            folder / f'run_{workers}',
            iterations=80,
            log_interval=20,
            num_workers=workers,
            persistent_workers=True,
            item_s=0.05,
            step_s=0.015,
        )
    )
    capsys.readouterr()
    words = [str(folder / f'run_{workers}'), '--config', str(config)]
    assert main(['recommend', *words, '--format', 'json']) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


@pytest.mark.timing
def test_the_answer_for_workers_that_wait_holds_when_it_was_trained_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cores = min(len(os.sched_getaffinity(0)), 2)
    before = train_and_ask(tmp_path, cores, capsys)
    (change,) = before['changes']
    assert change['key'] == 'train_dataloader.num_workers'
    assert change['new'] > cores
    assert change['predicted_gain_low_pct'] > 0
    if change['new'] > len(os.sched_getaffinity(0)):
        assert 'PyTorch will warn' in change['reason']
    assert f'num_workers={change["new"]}' in Path(before['output']).read_text()
    after = train_and_ask(tmp_path, change['new'], capsys)
    assert after['changes'] == []
    assert 'MG105' not in [finding['code'] for finding in after['findings']]
