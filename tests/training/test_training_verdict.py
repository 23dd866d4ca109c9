"""Tests the verdict records of an ended training and of a killed one."""

from __future__ import annotations

import json
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fakes.clock import HandClock
from mmgpu_hooks.hooks.verdict_source import VERDICT_PERIOD_S
from training import recommended as endings
from training.recommended import SCRIPT_CODE, train, write_configs
from training.toy import find_evidence


def read_lines(work_dir: Path) -> list[dict[str, Any]]:
    return list(map(json.loads, find_evidence(work_dir).read_text().splitlines()))


def read_verdicts(work_dir: Path) -> list[dict[str, Any]]:
    return [line for line in read_lines(work_dir) if line['kind'] == 'verdict']


def pass_an_hour(runner: Any) -> None:
    """Advances the hook's clock by an hour, and kills the training after a verdict."""
    (recorder,) = (
        hook._recorder for hook in runner.hooks if hasattr(hook, '_recorder')
    )
    verdicts = recorder._verdicts
    verdicts._clock = HandClock(verdicts._clock() + VERDICT_PERIOD_S)

    def kill() -> None:
        while not read_verdicts(Path(runner.work_dir)):
            time.sleep(0.02)
        endings.kill(runner)

    threading.Thread(target=kill, daemon=True).start()


def test_a_run_that_is_killed_after_its_first_hour_has_its_verdict(tmp_path, ask):
    config, work_dir = write_configs(tmp_path, length=1200), tmp_path / 'run'
    ended = train(config, work_dir, pass_an_hour)
    assert ended.code == -signal.SIGKILL
    lines = read_lines(work_dir)
    assert 'end' not in {line['kind'] for line in lines}
    first, *_ = read_verdicts(work_dir)
    assert first['verdict'] == 'data_bound_workers'
    assert 'is_final' not in first
    assert first['changes'][0]['key'] == 'train_dataloader.num_workers'
    assert first['saved_hours'] > 0
    assert 0 < first['training_hours'] < 1
    # and can be read as ever
    assert ask('recommend', work_dir, '--dry-run')['status'] == 'killed'


@pytest.mark.parametrize(
    ('end', 'code', 'options'),
    [
        pytest.param(None, SCRIPT_CODE, {}, id='completed'),
        pytest.param(
            None, SCRIPT_CODE, {'write_config': False}, id='without the config'
        ),
        pytest.param(endings.interrupt, 1, {}, id='interrupted'),
        pytest.param(endings.fail, 1, {}, id='failed'),
    ],
)
def test_a_training_that_ends_has_its_verdict_after_the_end_record(
    tmp_path, end, code, options
):
    work_dir = tmp_path / 'run'
    keys = {f'default_hooks.gpu_efficiency.{key}': options[key] for key in options}
    ended = train(write_configs(tmp_path), work_dir, end, options=keys)
    assert ended.code == code, ended.console
    *_, before, verdict = read_lines(work_dir)
    assert (before['kind'], verdict['kind']) == ('end', 'verdict')
    assert verdict['is_final']
    assert verdict['verdict'] == 'data_bound_workers'
    assert verdict['gpu_hours'] == 0
    assert abs(verdict['written_unix_s'] - time.time()) < 60
    assert len(read_verdicts(work_dir)) == 1


def test_without_summary_and_config_no_verdict_is_written_at_the_end(tmp_path):
    work_dir, names = tmp_path / 'run', ('summary', 'write_config')
    keys = {f'default_hooks.gpu_efficiency.{name}': False for name in names}
    assert train(write_configs(tmp_path), work_dir, options=keys).code == SCRIPT_CODE
    assert read_lines(work_dir)[-1]['kind'] == 'end'


def test_a_comment_outside_of_slurm_is_no_complaint(tmp_path):
    keys = {'default_hooks.gpu_efficiency.slurm_comment': True}
    ended = train(write_configs(tmp_path), tmp_path / 'run', options=keys)
    assert 'switched off' not in ended.console
    assert 'slurm_job_id' not in read_verdicts(tmp_path / 'run')[0]
