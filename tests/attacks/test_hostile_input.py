"""What others may have written: evidence, names, configs, lock files."""

from __future__ import annotations

import importlib
import os
import resource
from pathlib import Path

import pytest

from fakes.compared_runs import write_run
from fakes.forked import run_forked
from fakes.nvml import FakeGpu
from fakes.prepared import make_starved, prepare_config
from fakes.replaced import replace
from mmgpu_hooks.schema.run_folder import EVIDENCE_NAME, evidence_name

WORKERS = 'train_dataloader.num_workers=7'
OWNED = '\x1b]0;OWNED\x07\u202e'
MARKS = ('\x1b', '\x07', '\u202e')
"""A terminal's title is set, and text runs from right to left."""


def show_image_name(folder: Path) -> list[str]:
    found = make_starved()
    intervals = [
        replace(
            one,
            workers=replace(
                one.workers,
                slowest=tuple(replace(s, image=OWNED) for s in one.workers.slowest),
            ),
        )
        for one in found.intervals
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
        show_image_name,
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


def test_no_card_commands_the_terminal(fake_nvml, tmp_path, monkeypatch):
    monkeypatch.setattr('mmgpu_hooks.experiment.cards.LOCKS', tmp_path / 'locks')
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
    assert code == 2
    assert 'name it with --config' in err
    assert err.count('\n') == 1


def test_iterations_beyond_32_bits_are_reported(tmp_path):
    found = make_starved()
    many = [replace(o, iteration=o.iteration + 2**33) for o in found.intervals]
    write_run(tmp_path / 'run', replace(found, intervals=tuple(many)))
    command = ['report', str(tmp_path / 'run'), '-o', str(tmp_path / 'out.html')]
    code, _, err = run_forked(command)
    assert (code, err) == (0, '')


def limit_memory() -> None:
    """Allow half as much more memory as the line below is long, and all imports."""
    for name in ('compare', 'predict'):
        importlib.import_module(f'mmgpu_hooks.commands.{name}')
    for name in ('rich.measure', 'scipy.special'):
        importlib.import_module(name)
    pages = int(Path('/proc/self/statm').read_text().split()[0])
    most = pages * resource.getpagesize() + 32 * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


@pytest.mark.parametrize('more', [0, 64 * 2**20])
@pytest.mark.parametrize('command', ['compare', 'predict'])
def test_a_line_without_an_end_is_not_held_in_memory(command, more, run_folder):
    evidence = run_folder / EVIDENCE_NAME
    os.truncate(evidence, evidence.stat().st_size + more)
    words = [str(run_folder)] * (2 if command == 'compare' else 1)
    code, out, err = run_forked([command, *words], first=limit_memory)
    assert (code, err) == (0, '')
    assert ('skipped' in out) == bool(more)


def test_a_size_that_means_nothing_is_refused():
    code, out, err = run_forked(['pick-gpu', '--min-free', '9' * 400 + 'GiB'])
    assert (code, out) == (2, '')
    assert 'Traceback' not in err
    assert "'--min-free': expected" in err
