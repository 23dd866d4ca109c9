"""The diff is one that patch applies, and does nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from mmgpu_hooks.config.loading import read_config
from mmgpu_hooks.config.rewrite import rewrite_config

pytest.importorskip('mmengine.config', reason='the proof loads configs with MMEngine')

TEXT = 'a = 1\ntrain_dataloader = dict(num_workers=2)'
WORKERS = {'train_dataloader.num_workers': 8}
TOOLS = {'patch': ['patch', '-p0'], 'git': ['git', 'apply', '-p0', '-']}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path('a b').mkdir()
    return tmp_path


def apply(tool, diff):
    if shutil.which(tool) is None:
        pytest.skip(f'{tool} is not installed')
    subprocess.run(TOOLS[tool], input=diff, text=True, check=True, capture_output=True)


@pytest.mark.parametrize('tool', TOOLS)
@pytest.mark.parametrize('name', ['mine.py', 'a b/my one.py'])
@pytest.mark.parametrize('absolute', [False, True])
def test_an_edit_in_place_is_applied(here, tool, name, absolute):
    Path(name).write_text(TEXT)
    path = here / name if absolute else Path(name)
    outcome = rewrite_config(path, WORKERS, in_place=True, dry_run=True)
    apply(tool, outcome.diff)
    assert Path(name).read_text() == outcome.text == TEXT.replace('2', '8')


@pytest.mark.parametrize('tool', TOOLS)
@pytest.mark.parametrize('name', ['mine.py', 'a b/my one.py'])
def test_an_overlay_is_created_and_its_base_stays(here, tool, name):
    Path(name).write_text(TEXT)
    outcome = rewrite_config(Path(name), WORKERS, overlay=True, dry_run=True)
    apply(tool, outcome.diff)
    assert Path(name).read_text() == TEXT
    assert outcome.target.read_text() == outcome.text


def test_a_copy_is_patched_as_the_docs_say(here):
    if shutil.which('patch') is None:
        pytest.skip('patch is not installed')
    Path('mine.py').write_text(TEXT)
    outcome = rewrite_config(Path('mine.py'), WORKERS, dry_run=True)
    shutil.copy('mine.py', outcome.target)
    subprocess.run(
        ['patch', str(outcome.target)],
        input=outcome.diff,
        text=True,
        check=True,
        capture_output=True,
    )
    assert outcome.target.read_text() == outcome.text
    assert Path('mine.py').read_text() == TEXT


@pytest.mark.parametrize('tail', ['\n\n  \n', '\n  # x\n \n', '\n \r\n ', '\n\x0c\n '])
def test_blanks_on_the_last_lines_stay(here, tail):
    Path('mine.py').write_bytes(f'{TEXT}{tail}'.encode())
    outcome = rewrite_config(Path('mine.py'), WORKERS)
    assert outcome.reason is None
    assert outcome.target.read_bytes() == f'{TEXT.replace("2", "8")}{tail}'.encode()
    outcome = rewrite_config(Path('mine.py'), {'train_dataloader.batch_size': 1})
    assert outcome.target.read_bytes().endswith(tail.encode())


def test_a_base_keeps_its_variable_and_is_named(here):
    Path('base.py').write_text('n = 2\ntrain_dataloader = dict(num_workers=n)\n')
    Path('leaf.py').write_text("_base_ = 'base.py'\n")
    outcome = rewrite_config(Path('leaf.py'), WORKERS, edit_base=True)
    assert Path('base.py').read_text() == outcome.text
    assert outcome.text == 'n = 2\ntrain_dataloader = dict(num_workers=8)\n'
    Path('base.py').write_text('n = 2\ntrain_dataloader = build()\n')
    outcome = rewrite_config(Path('leaf.py'), WORKERS, edit_base=True, load=False)
    assert outcome.reason.startswith('base.py:2: ')


def test_a_name_that_ends_like_a_copy_is_no_copy(here):
    Path('voc_set.py').write_text(TEXT)
    outcome = rewrite_config(Path('voc_set.py'), WORKERS, suffix='_set')
    assert outcome.target == Path('voc_set_set.py')
    assert Path('voc_set.py').read_text() == TEXT


def test_threads_leave_the_output_of_the_process_alone(here):
    Path('mine.py').write_text(TEXT)
    before = sys.stdout, sys.stderr

    def load():
        for _ in range(5):
            read_config(Path('mine.py'))

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (sys.stdout, sys.stderr) == before


BAD = [
    *[('num_workers', value) for value in (None, -1, True, 1.5, '8', '')],
    *[('batch_size', value) for value in (0, -1, True, '4')],
    *[('prefetch_factor', value) for value in (0, -2, '2')],
    *[('persistent_workers', value) for value in (1, 'yes')],
    *[('pin_memory', value) for value in (1, 'cuda')],
    *[('sampler', value) for value in ('dict(x=1)', 3)],
]


@pytest.mark.parametrize(('key', 'value'), BAD)
def test_what_pytorch_refuses_is_refused(here, key, value):
    Path('mine.py').write_text(TEXT)
    outcome = rewrite_config(Path('mine.py'), {f'train_dataloader.{key}': value})
    assert outcome.status == 'refused'
    assert f'train_dataloader.{key}' in outcome.reason


def test_what_is_no_call_at_all_is_an_outcome(here):
    Path('mine.py').write_text(TEXT)
    for settings in (None, [], 'a'):
        outcome = rewrite_config(Path('mine.py'), settings)
        assert 'expected settings by dotted key' in outcome.reason
    huge = rewrite_config(Path('mine.py'), {'train_dataloader.timeout': 10**5000})
    assert 'expected a number of 64 bits' in huge.reason
    assert 'expected the path' in rewrite_config(None, WORKERS).reason
