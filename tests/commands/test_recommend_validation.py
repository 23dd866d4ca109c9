"""What ``mmgpu recommend`` does with the changes of validation's loader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fakes.replaced import replace
from fakes.runs import make_evidence, make_run, render_evidence
from fakes.validations import make_validation
from mmgpu_hooks.commands.main import main
from mmgpu_hooks.schema import LoaderSettings

TRAIN = """\
train_dataloader = dict(
    batch_size=4,
    num_workers=0,  # debugging
    persistent_workers=False,
    dataset=dict(type='ToyDataset'),
)
"""
VALIDATION = 'val_dataloader = dict(num_workers=1, persistent_workers=True)\n'

KEEPS_UP = {'data_wait_s': 0.001, 'step_s': 0.299}
"""Training with 2 workers that has nothing to change."""
WAITS = {'data_wait_s': 0.3, 'data_wait_cpu_s': 6.0, 'process_cpu_s': 10.0}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / 'configs' / 'mine.py'
    path.parent.mkdir()
    path.write_text(TRAIN + VALIDATION)
    return path


def write_run(config: Path, *, waits: bool = False) -> str:
    """A run whose validation has too few workers; training, too, if it waits."""
    run: dict[str, Any] = {'config_path': str(config)}
    if waits:
        run['loader'] = LoaderSettings(
            num_workers=0,
            persistent_workers=False,
            prefetch_factor=None,
            pin_memory=False,
            batch_size=4,
            batches_per_epoch=100,
            dataset_length=400,
            start_method='fork',
        )
    evidence = make_evidence(run=make_run(**run), **(WAITS if waits else KEEPS_UP))
    evidence = replace(evidence, validations=(make_validation(0), make_validation(1)))
    folder = config.parents[1] / 'work_dirs' / 'mine'
    path = folder / '20261120_101500' / 'vis_data' / 'gpu_efficiency.jsonl'
    path.parent.mkdir(parents=True)
    path.write_text(render_evidence(evidence))
    return str(folder)


def answer_of(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def test_the_loader_of_validation_is_rewritten_by_its_own_evidence(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(TRAIN + VALIDATION + 'test_dataloader = val_dataloader\n')
    folder = write_run(config)
    assert main(['recommend', folder, '--format', 'json']) == 0
    answer = answer_of(capsys)
    (change,) = answer['changes']
    assert (change['key'], change['old'], change['new']) == (
        'val_dataloader.num_workers',
        1,
        4,
    )
    assert answer['validation']['validations'] == 2
    assert answer['validation']['gain_s'] > 0.0
    written = (config.parent / 'mine_recommended.py').read_text()
    # training and testing keep theirs
    assert 'num_workers=0,  # debugging' in written
    assert written.endswith(
        'test_dataloader = val_dataloader\n\n'
        'val_dataloader = dict(val_dataloader, num_workers=4)\n'
    )
    assert any('test_dataloader was the same' in note for note in answer['notes'])
    main(['recommend', folder, '--dry-run'])
    printed = ' '.join(capsys.readouterr().out.split())
    assert 'val num_workers 1 4' in printed
    assert 'a validation ' in printed


@pytest.mark.parametrize(
    'without', ['', 'val_dataloader = None\n', 'val_dataloader = []\n']
)
def test_training_is_rewritten_where_validation_cannot_be(
    config: Path, capsys: pytest.CaptureFixture[str], without: str
) -> None:
    config.write_text(TRAIN + without)
    folder = write_run(config, waits=True)
    assert main(['recommend', folder, '--format', 'json']) == 0
    answer = answer_of(capsys)
    assert [change['key'] for change in answer['changes']] == [
        'train_dataloader.num_workers',
        'train_dataloader.persistent_workers',
    ]
    written = (config.parent / 'mine_recommended.py').read_text()
    assert 'num_workers=2,  # debugging' in written
    assert written.endswith(without)
    (note,) = [one for one in answer['notes'] if 'val_dataloader was left' in one]
    assert 'mine.py' in note and note.endswith('.') and not note.endswith('..')
    assert answer['validation']['gain_s'] is None
    assert 'config cannot take its changes' in answer['validation']['sentence']


def test_validation_alone_that_cannot_be_set_is_refused(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(TRAIN)
    folder = write_run(config)
    assert main(['recommend', folder]) == 2
    assert 'val_dataloader' in capsys.readouterr().err
    assert [path.name for path in config.parent.iterdir()] == ['mine.py']


def test_what_is_set_already_is_not_promised_again(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_run(config)
    assert main(['recommend', folder, '--in-place']) == 0
    capsys.readouterr()
    assert main(['recommend', folder, '--format', 'json']) == 0
    answer = answer_of(capsys)
    assert answer['changes'] == []
    assert 'has the recommended settings already' in answer['no_change_reason']
    assert answer['validation']['gain_s'] is None
    assert 'predicted to save' not in answer['validation']['sentence']


def test_each_gain_says_whose_it_is(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_run(config, waits=True)
    assert main(['recommend', folder, '--dry-run']) == 0
    printed = ' '.join(capsys.readouterr().out.split())
    assert 'val num_workers 1 ' in printed
    assert 'training (train loader) ' in printed
    assert 'a validation ' in printed
