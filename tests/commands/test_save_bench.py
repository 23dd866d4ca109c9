"""What ``mmgpu save-bench`` refuses before it trains anything, and its dry run."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from mmgpu_hooks.commands.main import main
from training.trial_toys import write_config

Usage = namedtuple('Usage', 'total used free')


def refusal(capsys, *arguments: object) -> str:
    assert main(['save-bench', *map(str, arguments), '--num-workers', '0', '2']) == 2
    out, err = capsys.readouterr()
    assert out == ''
    (line,) = err.splitlines()
    assert line.startswith('mmgpu save-bench: ')
    return line


def test_a_config_that_is_gone(tmp_path, capsys):
    line = refusal(capsys, tmp_path / 'gone.py')
    assert 'gone.py: expected a config file, found nothing there.' in line


def test_a_config_that_does_not_load(tmp_path, capsys):
    broken = tmp_path / 'broken.py'
    broken.write_text('1 / 0\n')
    line = refusal(capsys, broken)
    assert 'expected a config that MMEngine loads, found ZeroDivisionError' in line


def test_a_config_that_only_has_a_model(tmp_path, capsys):
    config = tmp_path / 'model.py'
    config.write_text("model = dict(type='training.toy.ToyModel')\n")
    line = refusal(capsys, config)
    assert 'found none of train_dataloader and train_cfg in it' in line


def test_a_model_that_cannot_be_built(tmp_path, capsys):
    config = write_config(tmp_path, more="model = dict(type='NoSuchModel')\n")
    assert 'cannot be built' in refusal(capsys, config)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_config(tmp_path, more="optim_wrapper['optimizer']['momentum'] = 0.9\n")


def test_a_disk_without_room_for_one_checkpoint(config, tmp_path, capsys, monkeypatch):
    # 112 weights and as many momenta, and the averaged model of EMAHook: 1352 bytes
    # and a quarter more
    for free, code in ((1689, 2), (1690, 0)):
        usage = Usage(10**9, 0, free)
        monkeypatch.setattr(shutil, 'disk_usage', lambda path, usage=usage: usage)
        words = [str(config), '--num-workers', '0', '--dry-run']
        assert main(['save-bench', *words, '--work-dir', str(tmp_path / 'w')]) == code
    out, err = capsys.readouterr()
    assert 'expected room for a checkpoint of 0 MB and a quarter more in' in err
    assert 'name another folder with --work-dir' in err
    assert 'Would train' in out


def test_a_work_dir_that_is_a_file(config, tmp_path, capsys):
    (tmp_path / 'taken').write_text('')
    line = refusal(capsys, config, '--work-dir', tmp_path / 'taken')
    assert 'expected a folder to write to, found Not a directory' in line


@pytest.mark.parametrize(
    ('option', 'value', 'words'),
    [
        ('--num-workers', '-1', 'expected a whole number, 0 or more, found -1'),
        ('--num-workers', '2.5', 'expected a whole number, 0 or more, found 2.5'),
        ('--num-workers', 'all', 'expected a whole number, 0 or more, found all'),
        ('--saves', '2', 'expected a whole number, 3 or more, found 2'),
        ('--saves', '-6', 'expected a whole number, 3 or more, found -6'),
        ('--worker-nice', '-5', 'expected a whole number, 1 to 19, found -5'),
        ('--worker-nice', '20', 'expected a whole number, 1 to 19, found 20'),
        ('--iterations-between', '0', '1 or more, found 0'),
        ('--time-limit', '0', 'expected seconds above 0, found 0'),
        ('--time-limit', 'nan', 'expected seconds above 0, found nan'),
        ('--time-limit', 'soon', 'expected seconds above 0, found soon'),
        ('--plot', 'saves.pdf', 'expected FILE.svg or FILE.png, found saves.pdf'),
        ('--plot', 'no/such/a.svg', 'expected a file in a folder that exists'),
    ],
)
def test_values_that_are_none(option, value, words, capsys):
    given = ['config.py', '--num-workers', '0', f'{option}={value}']
    with pytest.raises(SystemExit, match='2'):
        main(['save-bench', *given])
    assert words in ' '.join(capsys.readouterr().err.split())


@pytest.mark.parametrize('given', [[], ['--num-workers']])
def test_without_a_list_of_workers_there_is_nothing_to_do(given, capsys):
    with pytest.raises(SystemExit, match='2'):
        main(['save-bench', 'config.py', *given])
    assert '--num-workers' in capsys.readouterr().err


def test_a_dry_run_trains_nothing_and_leaves_nothing(config, tmp_path, capsys):
    before = sorted(tmp_path.rglob('*'))
    words = ['--num-workers', '2', '0', '2', '--worker-nice', '10', '--dry-run']
    words += ['--work-dir', str(tmp_path / 'runs' / 'a'), '--time-limit', '60']
    assert main(['save-bench', str(config), *words]) == 0
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines() if ' worker' in line]
    # the queue of 2 x 2 batches and 8 iterations; 4 after the last save
    assert rows == [
        ['0', 'workers', '7', '8', '56'],
        ['2', 'workers', '7', '12', '88'],
        ['2', 'workers,', 'nice', '10', '7', '12', '88'],
    ]
    assert '232 iterations and 3 starts, at most 180.0 s' in out
    assert sorted(tmp_path.rglob('*')) == before
