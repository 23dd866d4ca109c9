"""What ``mmgpu sweep`` refuses before it trains anything, and its dry run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec
import pytest

from fakes.sweeps import make_sweep_row
from mmgpu_hooks.commands.main import main
from mmgpu_hooks.config.loading import read_config
from mmgpu_hooks.experiment.store import STORE_NAME, open_store, read_identity
from mmgpu_hooks.schema import Trial
from training.trial_toys import write_config

ROW = make_sweep_row(2)
MEASURED = Trial(
    ROW.setting.name,
    'completed',
    figures={'row': msgspec.to_builtins(ROW), 'measure_s': 60.0, 'whole_s': 600.0},
)


def refusal(capsys, *arguments: object) -> str:
    assert main(['sweep', *map(str, arguments)]) == 2
    out, err = capsys.readouterr()
    assert out == ''
    (line,) = err.splitlines()
    assert line.startswith('mmgpu sweep: ')
    return line


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_config(tmp_path)


def test_a_config_that_is_gone(tmp_path, capsys):
    line = refusal(capsys, tmp_path / 'gone.py')
    assert 'gone.py: expected a config file, found nothing there.' in line


def test_a_config_that_only_has_a_model(tmp_path, capsys):
    path = tmp_path / 'model.py'
    path.write_text("model = dict(type='training.toy.ToyModel')\n")
    line = refusal(capsys, path)
    assert 'found none of train_dataloader and train_cfg in it' in line


TORCHRUN = {'TORCHELASTIC_RUN_ID': 'none', 'WORLD_SIZE': '2', 'LOCAL_WORLD_SIZE': '2'}


@pytest.mark.parametrize(
    ('variables', 'words', 'reason'),
    [
        ({'WORLD_SIZE': '2'}, [], 'found another launcher (WORLD_SIZE=2)'),
        ({**TORCHRUN, 'WORLD_SIZE': '4'}, [], 'found 2 of 4 here'),
        (
            {**TORCHRUN, 'RANK': '0'},
            ['--gpus', '2'],
            'expected --gpus or a launcher of ranks, found both',
        ),
    ],
    ids=['no torchrun', 'several hosts', 'gpus'],
)
def test_launchers_that_cannot_be_used(
    variables, words, reason, config, capsys, monkeypatch
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert reason in refusal(capsys, config, *words)


def test_under_torchrun_rank_0_alone_speaks(config, capsys, monkeypatch):
    for name, value in {**TORCHRUN, 'RANK': '1'}.items():
        monkeypatch.setenv(name, value)
    assert main(['sweep', str(config)]) == 0
    assert capsys.readouterr() == ('', '')


def test_a_work_dir_that_is_a_file(config, tmp_path, capsys):
    (tmp_path / 'taken').write_text('')
    line = refusal(capsys, config, '--work-dir', tmp_path / 'taken')
    assert 'expected a folder to write to, found Not a directory' in line


def test_charts_without_matplotlib(config, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, 'matplotlib', None)
    monkeypatch.setattr('importlib.util.find_spec', lambda name: None)
    line = refusal(capsys, config, '--plot-format', 'png')
    assert 'pip install' in line


def test_another_sweep_in_the_same_folder(config, tmp_path, capsys):
    path = tmp_path / 'w' / 'sweep' / STORE_NAME
    with open_store(path.parent, {}) as store:
        store.append(MEASURED)
        line = refusal(capsys, config, '--work-dir', tmp_path / 'w', '--fresh')
        assert path.read_text().count('\n') == 1
    assert 'found that another one is at work in it' in line
    assert [path.name for path in (tmp_path / 'w' / 'sweep').iterdir()] == [STORE_NAME]


def test_several_gpus_without_a_driver(config, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, 'pynvml', None)
    words = [config, '--gpus', '2', '--fresh', '--work-dir', tmp_path / 'w']
    assert 'the package nvidia-ml-py' in refusal(capsys, *words)
    assert not (tmp_path / 'w').exists()
    path = tmp_path / 'w' / 'sweep' / STORE_NAME
    with open_store(path.parent, {}) as store:
        store.append(MEASURED)
    before = path.read_bytes()
    refusal(capsys, *words)
    assert path.read_bytes() == before


def test_pictures_that_cannot_be_kept_leave_no_folder(config, tmp_path, capsys):
    (tmp_path / 'taken').write_text('')
    words = ['--work-dir', tmp_path / 'w', '--plots', tmp_path / 'taken']
    assert 'found File exists' in refusal(capsys, config, *words)
    assert not (tmp_path / 'w').exists()


@pytest.mark.parametrize(
    ('option', 'value', 'words'),
    [
        ('--num-workers', '-1', 'expected a whole number, 0 to 512, found -1'),
        ('--num-workers', '513', 'expected a whole number, 0 to 512, found 513'),
        ('--num-workers', '2.5', 'expected a whole number, 0 to 512, found 2.5'),
        ('--batch-size', '0', 'expected a whole number, 1 or more, found 0'),
        ('--prefetch', '0', 'expected a whole number, 1 to 1024, found 0'),
        ('--seconds', '0', 'expected seconds above 0, found 0'),
        ('--time-limit', 'nan', 'expected seconds above 0, found nan'),
        ('--gpus', '0', 'expected a whole number, 1 or more, found 0'),
        ('--seed', '-1', 'expected a whole number, 0 or more, found -1'),
        ('--plot-format', 'pdf', 'invalid choice'),
    ],
)
def test_values_that_are_none(option, value, words, capsys):
    with pytest.raises(SystemExit, match='2'):
        main(['sweep', 'config.py', f'{option}={value}'])
    assert words in ' '.join(capsys.readouterr().err.split())


DRY = ['--num-workers', '2', '0', '2', '--batch-size', '4', '--dry-run']


def test_a_dry_run_trains_nothing_and_leaves_nothing(config, tmp_path, capsys):
    before = sorted(tmp_path.rglob('*'))
    words = [*DRY, '--work-dir', str(tmp_path / 'w'), '--time-limit', '120']
    assert main(['sweep', str(config), *words]) == 0
    out = ' '.join(capsys.readouterr().out.split())
    assert 'Would train 2 of 2 setting(s)' in out
    assert '0 workers, batch 4 50 iterations 2 workers, batch 4 50' in out
    assert '240.0 s' in out
    assert f'Results would go to {tmp_path / "w" / "sweep"}' in out
    assert sorted(tmp_path.rglob('*')) == before


def test_a_dry_run_knows_what_is_done_and_what_is_of_another_config(
    config, tmp_path, capsys
):
    words = [str(config), *DRY, '--work-dir', str(tmp_path)]
    facts = {'saves': False, 'number of GPUs': 1, 'number of ranks': 1}
    identity = read_identity(read_config(config), **facts)
    with open_store(tmp_path / 'sweep', identity) as store:
        store.append(MEASURED)
    assert main(['sweep', *words]) == 0
    out = ' '.join(capsys.readouterr().out.split())
    assert 'Would train 1 of 2 setting(s)' in out
    assert '2 workers, batch 4 measured already' in out
    config.write_text(
        f'{config.read_text()}optim_wrapper["clip_grad"] = dict(max_norm=1)\n'
    )
    assert main(['sweep', *words]) == 0
    out = ' '.join(capsys.readouterr().out.split())
    assert 'Would train 2 of 2 setting(s)' in out
    assert '1 earlier trial(s) are of another config and were not reused.' in out
    assert main(['sweep', *words, '--fresh']) == 0
    assert 'earlier' not in capsys.readouterr().out
    # a dry run forgets nothing
    (line,) = (tmp_path / 'sweep' / STORE_NAME).read_text().splitlines()
    assert json.loads(line)['trial']['name'] == '2 workers, batch 4'


def test_without_a_batch_size_the_config_s_own_is_named(config, tmp_path, capsys):
    words = ['--num-workers', '0', '--dry-run', '--work-dir', str(tmp_path)]
    assert main(['sweep', str(config), *words]) == 0
    assert '0 workers, batch 2 ' in capsys.readouterr().out
