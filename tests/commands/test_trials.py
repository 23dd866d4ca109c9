"""What ``sweep``, ``save-bench`` and ``verify`` refuse before they train; dry runs."""

from __future__ import annotations

import json
import re
import shutil
from collections import namedtuple
from itertools import cycle
from pathlib import Path

import msgspec
import pytest

from fakes.compared_runs import write_run
from fakes.prepared import make_starved, prepare_config
from fakes.runs import make_evidence
from fakes.sweeps import make_sweep_row
from mmgpu_hooks.commands.main import main
from mmgpu_hooks.config.loading import read_config
from mmgpu_hooks.experiment import engine
from mmgpu_hooks.experiment.store import STORE_NAME, open_store, read_identity
from mmgpu_hooks.schema import Trial
from training.trial_toys import write_config

ROW = make_sweep_row(2)
MEASURED = Trial(
    ROW.setting.name,
    'completed',
    figures={'row': msgspec.to_builtins(ROW), 'measure_s': 60.0, 'whole_s': 600.0},
)
Usage = namedtuple('Usage', 'total used free')


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_config(tmp_path, more="optim_wrapper['optimizer']['momentum'] = 0.9\n")


@pytest.fixture
def refusal(capsys):
    """Runs a command that must refuse; its one sentence."""

    def run(name: str, *words: object) -> str:
        assert main([name, *map(str, words)]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count('\n')) == ('', 1)
        assert err.startswith(f'mmgpu {name}: ')
        return err

    return run


BAD_CONFIGS = {
    None: 'expected a config file, found nothing there',
    '1 / 0\n': 'expected a config that MMEngine loads, found ZeroDivisionError',
    "model = dict(type='A')\n": 'found none of train_dataloader and train_cfg',
}


@pytest.mark.parametrize('name', ['sweep', 'save-bench', 'verify', 'profile'])
@pytest.mark.parametrize('text', BAD_CONFIGS)
def test_configs_that_cannot_be_trained(name, text, tmp_path, refusal):
    path = tmp_path / 'bad.py'
    if text is not None:
        path.write_text(text)
    more = {'verify': [path], 'profile': []}.get(name, ['--num-workers', 0])
    line = refusal(name, path, *more)
    assert str(path) in line
    assert BAD_CONFIGS[text] in line


def test_a_model_that_cannot_be_built(tmp_path, refusal):
    config = write_config(tmp_path, more="model = dict(type='NoSuchModel')\n")
    line = refusal('save-bench', config, '--num-workers', 0)
    assert 'cannot be built' in line


def test_a_disk_without_room_for_one_checkpoint(config, tmp_path, capsys, monkeypatch):
    # 112 weights and as many momenta, and the averaged model of EMAHook: 1352 bytes
    # and a quarter more
    for free, code in ((1689, 2), (1690, 0)):
        usage = Usage(10**9, 0, free)
        monkeypatch.setattr(shutil, 'disk_usage', lambda path, usage=usage: usage)
        words = [str(config), '--num-workers', '0', '--dry-run']
        assert main(['save-bench', *words, '--work-dir', str(tmp_path / 'w')]) == code
    out, err = capsys.readouterr()
    assert 'expected space for a checkpoint' in err
    assert 'Would train' in out


TORCHRUN = {'TORCHELASTIC_RUN_ID': 'none', 'WORLD_SIZE': '2', 'LOCAL_WORLD_SIZE': '2'}


@pytest.mark.parametrize(
    ('variables', 'reason'),
    [
        ({'WORLD_SIZE': '2'}, 'found 0 of 2 here'),
        ({**TORCHRUN, 'WORLD_SIZE': '4'}, 'found 2 of 4 here'),
    ],
    ids=['no torchrun', 'several hosts'],
)
def test_launchers_that_cannot_be_used(variables, reason, config, refusal, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert reason in refusal('sweep', config)


def test_under_torchrun_rank_0_alone_prints(config, capsys, monkeypatch):
    for name, value in {**TORCHRUN, 'RANK': '1'}.items():
        monkeypatch.setenv(name, value)
    assert main(['sweep', str(config)]) == 0
    assert capsys.readouterr() == ('', '')


def test_a_sweep_that_is_refused_forgets_nothing(config, tmp_path, refusal):
    words = [config, '--fresh', '--work-dir', tmp_path / 'w']
    path = tmp_path / 'w' / 'sweep' / STORE_NAME
    with open_store(path.parent, {}) as store:
        store.append(MEASURED)
        before = path.read_bytes()
        line = refusal('sweep', *words)
    assert 'found that another one is at work in it' in line
    assert path.read_bytes() == before


def test_a_dry_run_knows_what_is_done_and_what_is_of_another_config(
    config, tmp_path, capsys
):
    words = ['--num-workers', '2', '0', '2', '--batch-size', '4', '--dry-run']
    command = ['sweep', str(config), *words, '--work-dir', str(tmp_path)]
    before = sorted(tmp_path.rglob('*'))

    def dry_run(*more: str) -> str:
        assert main([*command, *more]) == 0
        return ' '.join(capsys.readouterr().out.split())

    assert '--time-limit times 2)' in dry_run()
    assert sorted(tmp_path.rglob('*')) == before
    identity = read_identity(read_config(config), **{'number of ranks': 1})
    with open_store(tmp_path / 'sweep', identity) as store:
        store.append(MEASURED)
    assert '--time-limit times 1)' in dry_run()
    config.write_text(f'{config.read_text()}clip_grad = dict(max_norm=1)\n')
    out = dry_run()
    assert '--time-limit times 2)' in out
    assert '1 earlier trial(s)' in out
    assert 'earlier' not in dry_run('--fresh')
    (line,) = (tmp_path / 'sweep' / STORE_NAME).read_text().splitlines()
    assert json.loads(line)['trial']['name'] == '2 workers, batch 4'


def test_a_dry_run_of_saves_trains_nothing(config, tmp_path, capsys):
    before = sorted(tmp_path.rglob('*'))
    words = ['--num-workers', '2', '0', '2', '--worker-nice', '10', '--dry-run']
    assert main(['save-bench', str(config), *words]) == 0
    out = capsys.readouterr().out
    rows = [re.findall(r'\d+', line) for line in out.splitlines() if ' saves,' in line]
    # the queue of 2 x 2 batches and 8 iterations; 4 after the last save
    assert [row[-3:] for row in rows] == [
        ['7', '8', '56'],
        ['7', '12', '88'],
        ['7', '12', '88'],
    ]
    assert sorted(tmp_path.rglob('*')) == before


@pytest.mark.parametrize('given', [['a.py'], ['a.py', 'run'], ['a', 'b'], ['a'] * 3])
def test_neither_one_run_nor_two_configs(given, refusal):
    line = refusal('verify', *given)
    assert 'expected the folder of one run or two configs' in line
    assert ' '.join(given) in line


def test_runs_that_cannot_be_verified(tmp_path, refusal):
    well = make_evidence(data_wait_s=0.0001, step_s=0.2)
    plain = tmp_path / 'plain'
    plain.mkdir()
    (plain / 'scalars.json').write_text('{"time": 0.2, "iter": 50, "step": 50}\n')
    for folder, reason in (
        (write_run(tmp_path / 'a', well), 'expected a recommendation to verify'),
        (write_run(tmp_path / 'b', make_starved(tmp_path / 'gone.py')), 'gone.py nor'),
        (plain, 'expected evidence of GPUEfficiencyHook'),
        (tmp_path / 'nothing', 'found nothing there'),
    ):
        assert reason in refusal('verify', folder)


@pytest.mark.parametrize('iterations', [0, 201, 'all'])
def test_so_many_iterations_cannot_be_profiled(iterations, config, refusal):
    assert '--iterations' in refusal('profile', config, '--iterations', iterations)


@pytest.mark.parametrize(
    ('status', 'error', 'words'),
    [
        ('failed', 'TypeError: no', 'expected a config that trains 10 iterations'),
        ('timed_out', None, 'timed out after 0: killed after 600 s'),
        ('completed', None, 'completed after 0: the training was over'),
    ],
)
def test_a_training_that_cannot_be_profiled(
    status, error, words, config, tmp_path, scripted, refusal
):
    scripted.ending = staticmethod(lambda spec: (status, error))
    more = ['--iterations', 1, '--work-dir', tmp_path]
    line = refusal('profile', config, *more)
    assert words in line
    assert (error or '') in line


NOISY = [0.5, 2.0, 0.6, 1.9]


@pytest.mark.parametrize(
    ('gains', 'cores', 'is_said'),
    [(NOISY, 1.5, True), (NOISY, 0.1, False), ([1.5, 1.6], 1.5, False)],
)
def test_other_load_is_said_after_the_first_minute(
    tmp_path, scripted, gains, cores, is_said, monkeypatch, capsys
):
    configs = [str(prepare_config(tmp_path, name)) for name in ('a.py', 'b.py')]
    turns = cycle(gains)
    scripted.iteration_s = staticmethod(
        lambda spec: 0.1 / next(turns) if spec.folder.endswith('second') else 0.1
    )
    monkeypatch.setattr(engine.OtherLoad, 'read_cores', lambda self: cores)
    assert main(['verify', *configs, '--work-dir', str(tmp_path)]) == 0
    err = capsys.readouterr().err
    # once, with five minutes to go on for
    assert err.count('\n') == is_said
    assert ('1.5 cores' in err) == is_said
