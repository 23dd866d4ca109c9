"""Tests ``mmgpu set`` and ``mmgpu enable`` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmgpu_hooks.commands.main import main

CONFIG = """\
# my experiment
train_dataloader = dict(batch_size=4, num_workers=2, dataset=dict(type='Toy'))
"""
WORKERS = 'train_dataloader.num_workers=8'
BATCH = 'train_dataloader.batch_size=8'
OURS = "default_hooks = dict(gpu_efficiency=dict(type='mmgpu_hooks.GPUEfficiencyHook'))"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / 'mine.py'
    path.write_text(CONFIG)
    return path


def files_of(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_set_writes_a_copy_and_says_what_it_did(config, capsys):
    assert main(['set', str(config), WORKERS]) == 0
    out = capsys.readouterr().out
    new = CONFIG.replace('num_workers=2', 'num_workers=8')
    assert files_of(config.parent) == {'mine.py': CONFIG, 'mine_set.py': new}
    assert f'Written to {config.with_name("mine_set.py")}' in out
    assert f'--cfg-options {WORKERS}' in out
    assert '+train_dataloader = dict(batch_size=4, num_workers=8' in out


def test_set_reads_values_as_the_train_script_does(config, capsys):
    words = [
        'train_dataloader.persistent_workers=true',
        'train_dataloader.prefetch_factor=None',
        'train_dataloader.pin_memory_device=cuda',
        'train_dataloader.timeout=1.5',
    ]
    assert main(['set', str(config), *words, '--format', 'json', '--dry-run']) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer['changes'] == {
        'train_dataloader.persistent_workers': True,
        'train_dataloader.prefetch_factor': None,
        'train_dataloader.pin_memory_device': 'cuda',
        'train_dataloader.timeout': 1.5,
    }
    keys = 'version status config output backup changes diff cfg_options proven'
    assert set(answer) == {*keys.split(), 'notes', 'error'}
    assert (answer['status'], answer['output'], answer['proven']) == (
        'rewritten',
        None,
        True,
    )


def test_every_argument_of_pytorch_and_of_our_hook_is_known(config, capsys):
    import inspect

    from torch.utils.data import DataLoader

    from mmgpu_hooks import GPUEfficiencyHook
    from mmgpu_hooks.config.settings import OF_LOADER, OF_OUR_HOOK

    taken = set(inspect.signature(DataLoader).parameters)
    # no plain value stands for these
    objects = {'dataset', 'sampler', 'batch_sampler', 'collate_fn', 'generator'}
    assert taken - {*objects, 'worker_init_fn'} <= set(OF_LOADER)
    ours = set(inspect.signature(GPUEfficiencyHook).parameters)
    assert {*ours, 'type', 'priority'} == set(OF_OUR_HOOK)


def test_in_place_writes_once_and_check_tells_if_it_would(config, capsys):
    for _ in range(2):
        assert main(['set', str(config), WORKERS, '--in-place']) == 0
    changed = CONFIG.replace('num_workers=2', 'num_workers=8')
    assert config.read_text() == changed
    assert 'Nothing to change' in capsys.readouterr().out
    assert main(['enable', str(config)]) == 0
    assert config.read_text() == f'{changed}\n{OURS}\n'
    assert main(['enable', str(config), '--check']) == 0
    assert main(['set', str(config), BATCH, '--check']) == 1


def test_disable_takes_out_what_enable_adds(config, capsys):
    assert main(['enable', str(config)]) == 0
    enabled = config.read_text()
    assert main(['disable', str(config), '--check']) == 1
    assert main(['disable', str(config), '--dry-run']) == 0
    assert config.read_text() == enabled
    capsys.readouterr()
    assert main(['disable', str(config), '--format', 'json']) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer['changes'] == {'default_hooks.gpu_efficiency': None}
    # MMEngine takes no None for a hook that is none of its own
    assert (answer['proven'], answer['cfg_options']) == (True, None)
    assert config.read_text() == CONFIG
    assert main(['disable', str(config), '--check']) == 0
    assert 'has no GPUEfficiencyHook. Nothing to change.' in capsys.readouterr().out


REFUSED = [
    *[f'train_dataloader.{setting}' for setting in ('timeout=-1', 'timeout=nan')],
    *[
        f'train_dataloader.{setting}'
        for setting in ('timeout=None', 'timeout=1000000000')
    ],
    *[f'train_dataloader.{setting}' for setting in ('drop_last=7', 'drop_last=None')],
    'train_dataloader.multiprocessing_context=foo',
    *[f'train_dataloader.pin_memory_device={setting}' for setting in ('foo', '7')],
    'train_dataloader.shuffle=True',
    *[f'train_dataloader.num_batch_per_epoch={setting}' for setting in ('-1', 'foo')],
    *[
        f'default_hooks.gpu_efficiency.interval={setting}'
        for setting in ('-1', '2.5', 'x')
    ],
    'default_hooks.gpu_efficiency.gpu_sample_period_s=0',
    *[
        f'default_hooks.gpu_efficiency.stuck_after_s={setting}'
        for setting in ('nan', '-1')
    ],
    'default_hooks.gpu_efficiency.worker_nice=20',
    'default_hooks.gpu_efficiency.scalars=foo',
    'default_hooks.gpu_efficiency.summary=3',
    *[
        f'default_hooks.gpu_efficiency.priority={setting}'
        for setting in ('500', 'FIRST')
    ],
]


@pytest.mark.parametrize('assignment', REFUSED)
def test_what_a_training_would_die_of_is_not_written(config, capsys, assignment):
    before = f'{CONFIG}{OURS}\n'
    config.write_text(before)
    assert main(['set', str(config), assignment, '--in-place']) == 2
    out, err = capsys.readouterr()
    assert (out, err.count('\n')) == ('', 1)
    key, _, value = assignment.partition('=')
    assert 'expected' in err
    assert key in err
    assert value in err
    assert files_of(config.parent) == {'mine.py': before}


@pytest.mark.parametrize(
    'assignment',
    [
        'train_dataloader.timeout=60',
        'train_dataloader.drop_last=True',
        'train_dataloader.multiprocessing_context=spawn',
        'train_dataloader.pin_memory_device=cuda:0',
        'train_dataloader.shuffle=False',
        'train_dataloader.num_batch_per_epoch=None',
        'default_hooks.gpu_efficiency.interval=None',
        'default_hooks.gpu_efficiency.stuck_after_s=0',
        'default_hooks.gpu_efficiency.worker_nice=19',
        'default_hooks.gpu_efficiency.scalars=all',
        'default_hooks.gpu_efficiency.priority=low',
    ],
)
def test_what_a_training_takes_is_written(config, assignment):
    config.write_text(f'{CONFIG}{OURS}\n')
    assert main(['set', str(config), assignment, '--in-place']) == 0
    key = assignment.partition('=')[0]
    assert f'{key.rpartition(".")[2]}=' in config.read_text()


def test_a_batch_sampler_takes_the_batch_size_as_in_mmengine(config, capsys):
    config.write_text(
        'train_dataloader = dict(batch_size=4, num_workers=2,\n'
        "    sampler=dict(type='S'), batch_sampler=dict(type='B'))\n"
    )
    assert main(['set', str(config), 'train_dataloader.timeout=60']) == 0
    assert main(['set', str(config), 'train_dataloader.drop_last=True']) == 2
    assert 'batch_sampler option is mutually exclusive' in capsys.readouterr().err


BAD = {
    'no setting': ([], 'KEY=VALUE'),
    'no value': (['train_dataloader.num_workers'], 'expected KEY=VALUE'),
    'twice': ([WORKERS, WORKERS], 'expected train_dataloader.num_workers once'),
    'misspelt': (['train_dataloader.num_wrkers=3'], 'did you mean num_workers?'),
    'a slip': ([WORKERS + '8' * 23], 'expected a whole number from 0 to'),
    'hook': (['default_hooks.timer.type=Evil'], 'makes another hook of it'),
    'no loader': (['val_dataloader.num_workers=4'], 'expected val_dataloader to be'),
    'excluded': (
        ['train_dataloader.num_workers=0', 'train_dataloader.prefetch_factor=4'],
        'expected num_workers above 0',
    ),
}


@pytest.mark.parametrize('case', BAD)
def test_bad_input_is_one_sentence_and_exit_code_2(config, capsys, case):
    words, sentence = BAD[case]
    assert main(['set', str(config), *words]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count('\n')) == ('', 1)
    assert err.startswith('mmgpu set: ')
    assert sentence in err
    assert files_of(config.parent) == {'mine.py': CONFIG}


def test_a_refusal_is_in_the_json_too(config, capsys):
    command = ['set', str(config), 'val_dataloader.num_workers=4', '--format', 'json']
    assert main(command) == 2
    answer = json.loads(capsys.readouterr().out)
    assert (answer['status'], answer['output']) == ('refused', None)
    assert 'expected val_dataloader' in answer['error']
