"""Standard output and the keyboard: what a shell does to every command."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fakes.forked import run_forked
from fakes.nvml import FakeGpu
from mmgpu_hooks.commands import predict
from mmgpu_hooks.commands.main import _COMMANDS, main

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
    'pick-gpu': ['--leases', 'leases'],
    'save-bench': ['CONFIG', '--num-workers', '0', '--dry-run'],
    'sweep': ['CONFIG', '--dry-run'],
    'explain': [],
    'why': ['RUN'],
}
"""Arguments with which each prints something soon; ``verify`` and ``demo`` train."""

WITHOUT_ARGUMENTS = {'explain': 0, 'pick-gpu': 0}


@pytest.fixture
def command_of(config, run_folder, fake_nvml, tmp_path, monkeypatch):
    """The words of a command that prints."""
    fake_nvml.set(FakeGpu(util=(0,)))
    monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
    monkeypatch.chdir(tmp_path)
    places = {'RUN': str(run_folder), 'CONFIG': str(config)}
    return lambda name: [name, *(places.get(word, word) for word in PRINTING[name])]


def test_every_command_is_tried():
    assert {*PRINTING, 'verify', 'demo'} == set(_COMMANDS)


@pytest.mark.parametrize('name', _COMMANDS)
def test_every_command_has_help(name, capsys):
    with pytest.raises(SystemExit) as stop:
        main([name, '--help'])
    assert stop.value.code == 0
    out, err = capsys.readouterr()
    assert out.startswith(f'usage: mmgpu {name}')
    assert 'exit codes: ' in out
    assert err == ''


@pytest.mark.parametrize('name', _COMMANDS)
def test_every_command_says_what_it_lacks(name, fake_nvml, tmp_path, monkeypatch):
    monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
    monkeypatch.setattr('mmgpu_hooks.experiment.cards.LOCKS', tmp_path / 'locks')
    code, out, err = run_forked([name])
    assert code == WITHOUT_ARGUMENTS.get(name, 2)
    assert 'Traceback' not in err
    assert bool(out) != bool(err)


@pytest.mark.parametrize('name', PRINTING)
def test_a_command_that_prints_is_well(name, command_of):
    """As the two below, with an output: so that they fail of nothing else."""
    code, out, _ = run_forked(command_of(name))
    assert code == 0
    assert out


CUT = pytest.mark.xfail(strict=True, reason='traceback and exit 1 in place of 2 or 141')


@CUT
@pytest.mark.parametrize('stdout', ['closed', 'full'])
@pytest.mark.parametrize('name', PRINTING)
def test_an_output_that_cannot_be_written_is_one_sentence(name, stdout, command_of):
    code, _, err = run_forked(command_of(name), stdout=stdout)
    assert code in (2, 141)
    assert 'Traceback' not in err


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


@pytest.mark.xfail(strict=True, reason='what is imported first is not guarded')
def test_ctrl_c_while_python_imports_is_no_traceback():
    command = [sys.executable, '-c', INTERRUPTED, 'explain']
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode in (130, -signal.SIGINT)
    assert done.stderr == ''


def test_a_prediction_fits_into_80_columns(run_folder, capsys, monkeypatch):
    narrow = {'width': 80, 'color': False}
    monkeypatch.setattr(predict, 'terminal_layout', lambda stream: narrow)
    assert main(['predict', str(run_folder)]) == 0
    out = capsys.readouterr().out
    assert 'images/s' in out
    assert '\u2026' not in out
