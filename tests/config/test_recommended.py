"""Tests that a run's recommended config repeats the run's training, but faster."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from mmgpu_hooks.config.recommended import write_beside_run
from mmgpu_hooks.schema.judged import Change, Recommendation
from mmgpu_hooks.schema.run_folder import RunFiles
from mmgpu_hooks.schema.text import quoted

Config = pytest.importorskip('mmengine.config').Config

BASE = (
    'train_dataloader = dict(num_workers=0, persistent_workers=False, batch_size=2)\n'
    'model = dict(depth=50)\nload_from = None\nresume = False\n'
)
CONFIG = '_base_ = "../base.py"\nname = "{{ fileBasenameNoExtension }}"\n'
PURE = (
    'from mmengine.config import read_base\n'
    'with read_base():\n    from .bare import *\n'
    "name = 'mine'\n"
)
FOUND = Recommendation(
    tuple(
        Change(f'train_dataloader.{key}', old, new, quoted('planted'), 'high')
        for key, old, new in (
            ('num_workers', 0, 4),
            ('persistent_workers', False, True),
        )
    )
)


def make_run(
    folder: Path, config: Path, **started: Any
) -> tuple[RunFiles, dict[str, Any]]:
    """Writes the folder of an MMEngine run; returns its files and its loaded config.

    Args:
        folder: The work_dir.
        config: What was trained.
        started: What the script or the command line set, by dotted key.
    """
    loaded = Config.fromfile(config)
    loaded.merge_from_dict({'work_dir': str(folder), 'launcher': 'none', **started})
    vis_data = folder / '20261120_091112' / 'vis_data'
    vis_data.mkdir(parents=True)
    loaded.dump(vis_data / 'config.py')
    return RunFiles(vis_data, config_copy=vis_data / 'config.py'), loaded.to_dict()


def write_configs(folder: Path, name: str = 'mine.py', text: str = CONFIG) -> Path:
    (folder / 'configs').mkdir()
    (folder / 'base.py').write_text(BASE)
    (folder / 'configs' / 'bare.py').write_text(BASE)
    path = folder / 'configs' / name
    path.write_text(text)
    return path


def expect_changed(path: Path, trained: dict[str, Any], *apart: str) -> None:
    """Asserts that a config differs from the run's only by the recommended changes."""
    loaded, expected = Config.fromfile(path).to_dict(), {**trained}
    expected['train_dataloader'] = {
        **expected['train_dataloader'],
        'num_workers': 4,
        'persistent_workers': True,
    }
    for key in apart:
        loaded.pop(key, None), expected.pop(key, None)
    assert loaded == expected


@pytest.mark.parametrize('name', ['mine.py', "it's mine.py", 'mine_recommended.py'])
def test_a_child_names_the_config_and_the_changes_alone(tmp_path, name):
    config = write_configs(tmp_path, name)
    files, trained = make_run(tmp_path / 'run', config)
    applied = write_beside_run(FOUND, str(config), files)
    outcome, found = applied.outcome, applied.recommendation
    stem = config.stem.removesuffix('_recommended')
    target = files.run_folder / f'{stem}_recommended.py'
    assert (outcome.status, outcome.target, outcome.reason) == (
        'rewritten',
        target,
        None,
    )
    assert found == FOUND
    assert target.read_text() == (
        f'_base_ = {str(config)!r}\n\n'
        'train_dataloader = dict(num_workers=4, persistent_workers=True)\n'
    )
    # it trains in a folder of its own, and has no launcher
    expect_changed(target, trained, 'work_dir', 'launcher')
    assert [path for path in files.run_folder.iterdir() if path.is_file()] == [target]


@pytest.mark.parametrize(
    ('text', 'started', 'later'),
    [
        (PURE, {}, None),
        (CONFIG, {'model.depth': 101}, None),
        (CONFIG, {'train_dataloader.batch_size': 8}, None),
        # edited since, so that it loads otherwise, or not at all
        (CONFIG, {}, CONFIG + 'model = dict(depth=18)\n'),
        (CONFIG, {}, 'def broken(:\n'),
    ],
)
def test_where_the_config_is_not_what_was_trained_the_copy_is(
    tmp_path, text, started, later
):
    config = write_configs(tmp_path, text=text)
    files, trained = make_run(tmp_path / 'run', config, **started)
    if later is not None:
        config.write_text(later)
    outcome = write_beside_run(FOUND, str(config), files).outcome
    assert outcome.target == files.run_folder / 'mine_recommended.py'
    assert '_base_' not in outcome.target.read_text()
    expect_changed(outcome.target, trained, 'work_dir')


@pytest.mark.parametrize(
    ('text', 'started', 'later', 'folder'),
    [
        (PURE, {}, None, None),
        (CONFIG, {'model.depth': 101}, None, None),
        (f'{PURE}work_dir = None\n', {}, None, None),
        (f"{PURE}work_dir = 'work_dirs/own'\n", {}, None, 'work_dirs/own'),
        (f"{CONFIG}work_dir = 'own'\n", {'model.depth': 101}, None, 'own'),
        # nobody knows what it said
        (CONFIG, {}, 'def broken(:\n', 'run'),
        (PURE, {}, 'gone', 'run'),
    ],
)
def test_a_copy_does_not_train_into_the_folder_of_the_run(
    tmp_path, text, started, later, folder
):
    config = write_configs(tmp_path, text=text)
    run = tmp_path / 'run'
    files, _ = make_run(run, config, **started)
    if later == 'gone':
        config.unlink()
    elif later is not None:
        config.write_text(later)
    outcome = write_beside_run(FOUND, str(config), files).outcome
    assert outcome.target is not None
    loaded, is_unknown = Config.fromfile(outcome.target), folder == 'run'
    # MMDetection's tools/train.py names one by the config where there is none
    assert loaded.get('work_dir') == (str(run) if is_unknown else folder)
    written = outcome.target.read_text()
    assert ('work_dir' in written) == (folder is not None)
    assert written.startswith('# work_dir is the folder of that run') == is_unknown


def test_a_text_config_that_imports_has_a_child(tmp_path):
    config = write_configs(tmp_path, text=f'{CONFIG}import numpy\n')
    files, trained = make_run(tmp_path / 'run', config)
    outcome = write_beside_run(FOUND, str(config), files).outcome
    assert outcome.target.read_text().startswith(f'_base_ = {str(config)!r}\n')
    expect_changed(outcome.target, trained, 'work_dir', 'launcher')


@pytest.mark.parametrize(
    ('text', 'is_child', 'weights'),
    [
        (CONFIG, True, None),
        (PURE, False, None),
        (f"{PURE}load_from = 'coco.pth'\n", False, 'coco.pth'),
    ],
)
def test_after_a_resumed_run_it_begins_anew(tmp_path, text, is_child, weights):
    config = write_configs(tmp_path, text=text)
    resumed = {'resume': True, 'load_from': str(tmp_path / 'epoch_3.pth')}
    files, trained = make_run(tmp_path / 'run', config, **resumed)
    outcome = write_beside_run(FOUND, str(config), files).outcome
    begun = {**trained, 'resume': False, 'load_from': weights}
    apart = ('work_dir', 'launcher') if is_child else ('work_dir',)
    expect_changed(outcome.target, begun, *apart)
    # a child says by itself what it begins with
    written = outcome.target.read_text()
    assert written.count('# The run was resumed.') == (not is_child)
    is_unknown = not is_child and weights is None
    assert written.count('name them in load_from') == is_unknown


@pytest.mark.parametrize(('text', 'is_child'), [(CONFIG, True), (PURE, False)])
def test_a_recommended_config_needs_no_older_run(tmp_path, text, is_child):
    config = write_configs(tmp_path, text=text)
    first, _ = make_run(tmp_path / 'older', config)
    older = write_beside_run(FOUND, str(config), first).outcome.target
    second, _ = make_run(tmp_path / 'newer', older)
    change = Change('train_dataloader.num_workers', 4, 6, quoted('planted'), 'high')
    outcome = write_beside_run(Recommendation((change,)), str(older), second).outcome
    assert outcome.target == second.run_folder / 'mine_recommended.py'
    shutil.rmtree(tmp_path / 'older')
    written = outcome.target.read_text()
    assert written.startswith(f'_base_ = {str(config)!r}\n') == is_child
    loader = Config.fromfile(outcome.target).train_dataloader
    assert loader.to_dict() == {
        'num_workers': 6,
        'persistent_workers': True,
        'batch_size': 2,
    }


@pytest.mark.parametrize('path', [None, 'gone.py'])
def test_without_a_config_the_copy_is_named_so(tmp_path, path):
    files, trained = make_run(tmp_path / 'run', write_configs(tmp_path))
    gone = path and str(tmp_path / path)
    outcome = write_beside_run(FOUND, gone, files).outcome
    assert outcome.target == files.run_folder / 'config_recommended.py'
    expect_changed(outcome.target, trained)


def test_a_config_in_json_has_a_child_as_well(tmp_path):
    config = tmp_path / 'mine.json'
    config.write_text(json.dumps({'train_dataloader': {'num_workers': 0}}))
    files, trained = make_run(tmp_path / 'run', config)
    outcome = write_beside_run(FOUND, str(config), files).outcome
    assert outcome.target == files.run_folder / 'mine_recommended.py'
    expect_changed(outcome.target, trained, 'work_dir', 'launcher')


def test_other_content_of_that_name_is_kept(tmp_path):
    config = write_configs(tmp_path)
    files, _ = make_run(tmp_path / 'run', config)
    target = files.run_folder / 'mine_recommended.py'
    target.write_text('# by hand\n')
    outcome = write_beside_run(FOUND, str(config), files).outcome
    assert outcome.backup is not None
    assert outcome.backup.read_text() == '# by hand\n'
    assert target.read_text().startswith('_base_')


@pytest.mark.parametrize(
    ('copy', 'said'),
    [
        (None, "expected a copy of the config in the run's folder, found none"),
        ('model = <ToyModel>\n', 'does not load'),
        ('\0', 'does not load'),
    ],
)
def test_without_a_copy_that_loads_nothing_is_written(tmp_path, copy, said):
    config = write_configs(tmp_path)
    files, _ = make_run(tmp_path / 'run', config)
    path = files.folder / 'config.py'
    path.unlink()
    if copy is None:
        files = RunFiles(files.folder)
    else:
        path.write_text(copy)
    outcome = write_beside_run(FOUND, str(config), files).outcome
    assert outcome.status == 'refused'
    assert said in outcome.reason
    assert not list(files.run_folder.glob('*.py'))
