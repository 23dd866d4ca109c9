"""Tests commands with closed pipes, signals and other events of a shell."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fakes.forked import run_forked
from fakes.nvml import FakeGpu
from mmgpu_hooks.commands.main import COMMANDS

ROOT = Path(__file__).resolve().parents[2]

PRINTING = {
    'recommend': ['RUN', '--dry-run'],
    'predict': ['RUN'],
    'compare': ['RUN', 'RUN'],
    'report': ['RUN'],
    'set': ['CONFIG', 'train_dataloader.num_workers=7', '--dry-run'],
    'enable': ['CONFIG', '--dry-run'],
    'disable': ['CONFIG', '--dry-run'],
    'estimate-memory': ['CONFIG'],
    'pick-gpu': [],
    'explain': [],
    'why': ['RUN'],
    'doctor': [],
    'runs': ['RUN'],
}
"""Arguments with which each command prints something quickly."""

TRAINING = {'verify', 'profile', 'sweep', 'save-bench', 'demo', 'run'}

WITHOUT_ARGUMENTS = {'explain': {0}, 'pick-gpu': {0}, 'doctor': {0, 1}}
"""Allowed exit codes of commands that need no arguments."""


@pytest.fixture
def command_of(config, run_folder, fake_nvml, tmp_path, monkeypatch):
    """Function that returns a command line that prints quickly, by command name."""
    fake_nvml.set(FakeGpu(util=(0,)))
    monkeypatch.chdir(tmp_path)
    places = {'RUN': str(run_folder), 'CONFIG': str(config)}
    return lambda name: [name, *(places.get(word, word) for word in PRINTING[name])]


def test_every_command_is_tried():
    assert {*PRINTING, *TRAINING} == {*COMMANDS}


@pytest.mark.parametrize('name', COMMANDS)
def test_every_command_says_what_it_lacks(name, fake_nvml):
    code, out, err = run_forked([name])
    assert code in WITHOUT_ARGUMENTS.get(name, {2})
    assert 'Traceback' not in err
    assert bool(out) != bool(err)


@pytest.mark.parametrize('name', PRINTING)
def test_an_output_that_cannot_be_written_is_one_sentence_and_exit_code_2(
    name, command_of
):
    code, out, _ = run_forked(command_of(name))
    assert code in WITHOUT_ARGUMENTS.get(name, {0})
    assert out
    for stdout in ('closed', 'full'):
        code, _, err = run_forked(command_of(name), stdout=stdout)
        assert (code, err.count('\n')) == (2, 1), err
        assert 'standard output' in err
    # as the shell has it for what a closed pipe ends, and as quiet
    code, _, err = run_forked(command_of(name), stdout='unread')
    assert (code, err) == (141, '')


INTERRUPTED = """
import signal, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == 'mmgpu_hooks.version':
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
import runpy
runpy.run_module('mmgpu_hooks', run_name='__main__')
"""


def test_ctrl_c_while_python_imports_is_no_traceback():
    command = [sys.executable, '-c', INTERRUPTED, 'explain']
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode in (130, -signal.SIGINT)
    assert done.stderr == ''
