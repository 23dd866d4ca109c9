from __future__ import annotations

import os
from pathlib import Path

import pytest

from mmgpu_hooks.schema.run_folder import (
    EvidenceError,
    find_other_ranks,
    find_peers,
    find_start_files,
    read_run_folder,
)


def make_run_folder(work_dir: Path, stamp: str, *names: str) -> Path:
    folder = work_dir / stamp / 'vis_data'
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_text('')
    return folder


def test_the_newest_run_is_found_by_its_time_stamp(tmp_path: Path):
    newest = make_run_folder(tmp_path, '20261120_101500', 'gpu_efficiency.jsonl')
    make_run_folder(tmp_path, '20261119_235959', 'gpu_efficiency.jsonl')
    files = read_run_folder(tmp_path)
    assert files.evidence == newest / 'gpu_efficiency.jsonl'
    assert len(files.older_runs) == 1


STAMP = '20261120_101500'


@pytest.mark.parametrize(
    'depth', ['', STAMP, f'{STAMP}/vis_data', f'{STAMP}/vis_data/gpu_efficiency.jsonl']
)
def test_any_folder_above_the_evidence_will_do(tmp_path: Path, depth: str):
    vis_data = make_run_folder(
        tmp_path, '20261120_101500', 'gpu_efficiency.jsonl', 'config.py'
    )
    files = read_run_folder(tmp_path / depth)
    assert files.evidence == vis_data / 'gpu_efficiency.jsonl'
    assert files.config_copy == vis_data / 'config.py'


def test_a_newest_run_without_evidence_is_plain_and_names_the_older_one(tmp_path: Path):
    old = make_run_folder(tmp_path, '20261119_101500', 'gpu_efficiency.jsonl')
    new = make_run_folder(tmp_path, '20261120_101500', 'scalars.json')
    files = read_run_folder(tmp_path)
    assert (files.evidence, files.folder) == (None, new)
    assert files.older_runs == (old / 'gpu_efficiency.jsonl',)


@pytest.mark.parametrize(
    ('name', 'found'),
    [
        ('nowhere', 'nothing there'),
        ('empty', 'an empty folder'),
        ('without', 'none'),
        ('/dev/null', 'neither a folder nor a file'),
        ('mine.py', 'a Python file; name .*work_dirs/mine'),
    ],
)
def test_what_holds_no_run_is_refused(tmp_path: Path, name, found):
    for folder in ('empty', 'without'):
        (tmp_path / folder).mkdir()
    (tmp_path / 'without' / 'epoch_1.pth').write_text('')
    (tmp_path / 'mine.py').write_text('')
    with pytest.raises(EvidenceError, match=f'found {found}'):
        read_run_folder(tmp_path / name)


@pytest.mark.parametrize('depth', [0, 1, 2])
def test_a_folder_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch, depth):
    vis_data = make_run_folder(tmp_path, '20261120_101500', 'gpu_efficiency.jsonl')
    locked = [tmp_path, vis_data.parent, vis_data][depth]
    listdir = os.listdir

    def refuse(folder):
        if Path(folder) == locked:
            raise PermissionError(13, 'Permission denied', str(folder))
        return listdir(folder)

    # root may read everything, so the system's refusal is played
    monkeypatch.setattr(os, 'listdir', refuse)
    with pytest.raises(EvidenceError, match=rf'denied" at {locked}; check its perm'):
        read_run_folder(tmp_path)


def test_ranks_come_in_their_order_and_of_one_training_only(tmp_path: Path):
    own = [f'gpu_efficiency_rank{rank}.jsonl' for rank in (1, 2, 10)]
    second = ['gpu_efficiency.2.jsonl', 'gpu_efficiency_rank1.2.jsonl']
    stray = ['gpu_efficiency_rankX.jsonl', 'gpu_efficiency_rank3.jsonl.bak']
    folder = make_run_folder(
        tmp_path, '20261120_101500', 'gpu_efficiency.jsonl', *own, *second, *stray
    )
    ranks = read_run_folder(tmp_path).other_ranks
    assert ranks == tuple(folder / name for name in own)
    assert find_other_ranks(folder / second[0]) == (folder / second[1],)


def test_peers_are_the_other_ranks_by_evidence_or_by_what_they_have_of_their_start(
    tmp_path,
):
    names = [
        'gpu_efficiency.jsonl',
        'gpu_efficiency_rank2.jsonl',
        'before_training_rank1.jsonl',
        'before_training_rank2.jsonl',
        'before_training_rank10.jsonl',
    ]
    for name in names:
        (tmp_path / name).touch()
    zero, two, one, _, ten = (tmp_path / name for name in names)
    assert find_peers(zero) == (one, two, ten)
    assert find_peers(two) == (zero, one, ten)
    # of rank 1's start
    assert find_peers(one) == (zero, two, ten)
    assert find_start_files(tmp_path) == (one, tmp_path / names[3], ten)
