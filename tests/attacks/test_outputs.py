"""Tests which files a command may overwrite, and what it leaves behind."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from fakes.forked import run_forked
from mmgpu_hooks.commands.main import main

WORKERS = 'train_dataloader.num_workers=7'
BATCH = 'train_dataloader.batch_size=3'

OUTPUTS = {
    'report -o': ('out.html', ['report', 'RUN', '-o', 'OUT']),
    'recommend --output': ('out.py', ['recommend', 'RUN', '--output', 'OUT']),
    'recommend': ('mine_recommended.py', ['recommend', 'RUN']),
    'set --output': ('out.py', ['set', 'CONFIG', WORKERS, '--output', 'OUT']),
    'enable --output': ('out.py', ['enable', 'CONFIG', '--output', 'OUT']),
}
"""Output file of each command, with the arguments that request it."""


def block(path: Path, kind: str) -> None:
    """Creates an object at a path that no output may replace, such as a pipe."""
    if kind == 'pipe':
        os.mkfifo(path)
    elif kind == 'device':
        try:
            os.mknod(path, 0o20666, os.makedev(1, 3))
        except PermissionError:
            pytest.skip('only root may make a device node')
    elif kind == 'link':
        path.with_name('precious').write_text('precious')
        path.symlink_to('precious')
    else:
        path.touch()
        path.chmod(0o444)


def identify(folder: Path) -> dict[Path, tuple[int, ...]]:
    """Returns inode, mode and modification time of each file below a folder."""
    found = {path: path.lstat() for path in folder.rglob('*')}
    return {
        path: (status.st_ino, status.st_mode, status.st_mtime_ns)
        for path, status in found.items()
    }


@pytest.mark.parametrize('kind', ['pipe', 'device', 'link', 'read-only file'])
@pytest.mark.parametrize('option', OUTPUTS)
def test_only_a_file_of_ours_is_replaced(
    option, kind, config, run_folder, tmp_path, monkeypatch
):
    name, words = OUTPUTS[option]
    folder = config.parent if option == 'recommend' else tmp_path / 'out'
    output = folder / name
    output.parent.mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(folder)
    places = {'RUN': run_folder, 'CONFIG': config, 'OUT': output}
    command = [str(places.get(word, word)) for word in words]
    block(output, kind)
    before = identify(folder)
    code, _, err = run_forked(command)
    assert code == 2
    assert output.name in err
    assert 'Traceback' not in err
    assert identify(folder) == before


@pytest.mark.parametrize('options', [[], ['--in-place']])
def test_a_read_only_config_stays_as_it_is(config, options, capsys):
    config.chmod(0o444)
    before = config.read_bytes()
    code = main(['set', str(config), WORKERS, *options])
    assert config.read_bytes() == before
    names = sorted(path.name for path in config.parent.iterdir())
    if options:
        assert code == 2
        assert 'read-only file (mode 0444)' in capsys.readouterr().err
        assert names == ['mine.py']
        return
    # the copy beside it is ours, and is written again
    assert (code, names) == (0, ['mine.py', 'mine_set.py'])
    assert main(['set', str(config), BATCH]) == 0
    assert 'batch_size=3' in config.with_name('mine_set.py').read_text()


NAMED = {
    'fileBasenameNoExtension': "data_root = '/data/{{ fileBasenameNoExtension }}/'\n",
    'fileBasename': "load_from = '/weights/{{ fileBasename }}.pth'\n",
}


@pytest.mark.parametrize('name', NAMED)
def test_a_copy_in_which_a_value_would_be_another_is_refused(name, config, capsys):
    text = config.read_text() + NAMED[name]
    config.write_text(text)
    assert main(['set', str(config), WORKERS]) == 2
    err = capsys.readouterr().err
    assert NAMED[name].split()[0] in err
    assert 'edit it in place' in err
    assert [path.name for path in config.parent.iterdir()] == ['mine.py']
    answer = ['set', str(config), WORKERS, '--in-place', '--format', 'json']
    capsys.readouterr()
    assert main(answer) == 0
    assert json.loads(capsys.readouterr().out)['proven']


def kill_at_replace() -> None:
    os.replace = lambda *paths: os.kill(os.getpid(), signal.SIGKILL)


def test_a_kill_before_the_replacement_tears_nothing(config):
    before = config.read_bytes()
    command = ['set', str(config), WORKERS, '--in-place']
    assert run_forked(command, first=kill_at_replace)[0] == -signal.SIGKILL
    assert config.read_bytes() == before
    assert run_forked(command)[0] == 0
