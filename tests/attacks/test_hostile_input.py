"""Tests hostile input by other people: evidence files, names, configs, lock files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fakes.forked import run_forked
from fakes.nvml import FakeGpu
from fakes.prepared import make_starved, prepare_config
from fakes.replaced import replace
from fakes.runs import write_run
from mmgpu_hooks.commands.main import main
from mmgpu_hooks.schema.run_folder import evidence_name

WORKERS = 'train_dataloader.num_workers=7'
OWNED = '\x1b]0;OWNED\x07\u202e'
MARKS = ('\x1b', '\x07', '\u202e')
"""Control characters that set a terminal's title or reverse the text direction."""


def show_transform_name(folder: Path) -> list[str]:
    found = make_starved()
    costs = {OWNED: 1.0}
    intervals = [
        replace(interval, workers=replace(interval.workers, transforms_s=costs))
        for interval in found.intervals
    ]
    write_run(folder, replace(found, intervals=tuple(intervals)))
    return ['recommend', str(folder)]


def show_config_comment(folder: Path) -> list[str]:
    config = prepare_config(folder)
    config.write_text(f'# {OWNED}\n{config.read_text()}')
    return ['set', str(config), WORKERS, '--dry-run']


def show_config_path(folder: Path) -> list[str]:
    config = prepare_config(folder, f'a{OWNED}.py')
    return ['set', str(config), WORKERS]


def show_run_path(folder: Path) -> list[str]:
    write_run(folder / OWNED, make_starved())
    return ['predict', str(folder / OWNED)]


def name_missing_run(folder: Path) -> list[str]:
    return ['report', str(folder / OWNED)]


@pytest.mark.parametrize(
    'show',
    [
        show_transform_name,
        show_config_comment,
        show_config_path,
        show_run_path,
        name_missing_run,
    ],
)
def test_nothing_commands_the_terminal(show, tmp_path):
    code, out, err = run_forked(show(tmp_path))
    assert code in (0, 2)
    assert not [mark for mark in MARKS if mark in out + err]


def test_no_card_commands_the_terminal(fake_nvml):
    fake_nvml.set(FakeGpu(name='H100 \x1b]0;OWNED\x07', util=(0,)))
    code, out, err = run_forked(['pick-gpu', '--', 'true'])
    assert (code, out) == (0, '')
    assert 'picked GPU 0 (H100 ' in err
    assert not [mark for mark in MARKS if mark in out + err]


@pytest.mark.parametrize('command', ['recommend', 'report', 'predict', 'compare'])
def test_a_pipe_in_the_place_of_a_ranks_evidence_keeps_nobody_waiting(
    command, run_folder, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    os.mkfifo(run_folder / evidence_name(1))
    words = [str(run_folder)] * (2 if command == 'compare' else 1)
    assert run_forked([command, *words], limit_s=10)[0] == 0


@pytest.mark.parametrize('command', ['recommend', 'verify'])
def test_a_config_where_none_can_be_is_one_sentence(command, tmp_path):
    gone = tmp_path / ('a' * 300) / 'mine.py'
    folder = write_run(tmp_path / 'run', make_starved(gone))
    code, _, err = run_forked([command, str(folder)])
    assert (code, err.count('\n')) == (2, 1)
    assert 'name it with --config' in err


def test_a_config_in_a_folder_that_may_not_be_entered_is_named_with_the_reason(
    tmp_path, capsys, monkeypatch
):
    config, stat = tmp_path / 'locked' / 'mine.py', os.stat
    folder = write_run(tmp_path / 'run', make_starved(config))

    def refuse(path, **how):
        if str(path) == str(config):
            raise PermissionError(13, 'Permission denied', str(path))
        return stat(path, **how)

    # root may enter every folder, so the system's refusal is played
    monkeypatch.setattr(os, 'stat', refuse)
    assert main(['recommend', str(folder)]) == 2
    assert f'neither {config} (Permission denied) nor a copy' in capsys.readouterr().err
