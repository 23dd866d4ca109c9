"""Tests that an ended training leaves a recommended config in its run folder.

And nowhere else, and after no other ending.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from mmengine.config import Config

from mmgpu_hooks.adviser import process
from mmgpu_hooks.adviser.process import ask_adviser
from mmgpu_hooks.commands.main import main
from mmgpu_hooks.measure.process_start import parse_process_start
from training import recommended as endings
from training.recommended import (
    NOT_ALLOWED,
    PURE,
    SCRIPT_CODE,
    Ended,
    read_settings,
    train,
    train_ranks,
    write_configs,
)
from training.toy import find_evidence

WORKERS = 'train_dataloader.num_workers'


def find_change(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Returns changed settings of the train loader; asserts that no others changed."""
    old, new = before.pop('train_dataloader'), after.pop('train_dataloader')
    assert before == after
    return {key: new.get(key) for key in {*old, *new} if old.get(key) != new.get(key)}


def expect_it(ended: Ended, name: str = 'mine') -> Path:
    """Asserts that one recommended config exists, and the summary names it."""
    path = ended.folder / f'{name}_recommended.py'
    assert ended.written == [path], ended.console
    assert ended.code == SCRIPT_CODE
    command, gain = ended.last_lines
    assert command.endswith(str(path))
    assert gain.strip().startswith('predicted: ')
    assert ' % less time (' in gain
    return path


@pytest.fixture(scope='module')
def completed(tmp_path_factory):
    """Config and result of a training that ended normally."""
    folder = tmp_path_factory.mktemp('completed')
    config = write_configs(folder)
    return config, train(config, folder / 'run')


def test_a_training_that_completes_leaves_a_child_of_its_config(completed, tmp_path):
    config, ended = completed
    path = expect_it(ended)
    first, *rest = filter(None, path.read_text().splitlines())
    assert first == f'_base_ = {str(config)!r}'
    assert [line.split()[0] for line in rest] == ['train_dataloader']
    change = find_change(read_settings(config), read_settings(path))
    assert change['num_workers'] >= 1
    assert ended.last_lines[0].split()[1:3] == ['python', 'tools/train.py']
    # it trains what it says, and is a config like any other
    again = train(path, tmp_path / 'again', endings.leave)
    assert again.code == 7
    copy = Config.fromfile(again.folder / 'vis_data' / 'config.py')
    assert copy.train_dataloader.num_workers == change['num_workers']


def test_the_commands_take_a_folder_with_it_as_one_without(
    completed, ask, tmp_path, capsys
):
    config, ended = completed
    answer = ask('recommend', ended.work_dir, '--dry-run')
    path = ended.folder / 'mine_recommended.py'
    (change,) = (change for change in answer['changes'] if change['key'] == WORKERS)
    assert change['new'] == Config.fromfile(path).train_dataloader.num_workers
    assert answer['config'] == str(config)
    assert ask('why', ended.work_dir)['state'] == 'completed'
    page = tmp_path / 'report.html'
    assert main(['report', str(ended.work_dir), '--output', str(page)]) == 0
    assert 'num_workers' in page.read_text()
    capsys.readouterr()
    # beside the config, as before
    output = ask('recommend', ended.work_dir)['output']
    assert Path(output) == config.with_name('mine_recommended.py')
    Path(output).unlink()


@pytest.mark.parametrize(
    ('end', 'code'),
    [
        (endings.interrupt, 1),
        (endings.fail, 1),
        (endings.leave, 7),
        (endings.kill, -signal.SIGKILL),
    ],
)
def test_a_training_that_is_ended_leaves_none(tmp_path, end, code):
    ended = train(write_configs(tmp_path), tmp_path / 'run', end)
    assert (ended.code, ended.written) == (code, [])
    assert not any('_recommended' in line for line in ended.last_lines)


@pytest.mark.parametrize(
    ('begin', 'end', 'said'),
    [
        (None, endings.put_a_folder_there, 'a folder, link, device or pipe'),
        (endings.enter_own_mounts, endings.make_read_only, 'Read-only file system'),
        (endings.train_on_small_disk, endings.fill_disk, 'No space left on device'),
    ],
)
def test_where_it_may_not_be_written_one_line_says_so(tmp_path, begin, end, said):
    config = write_configs(tmp_path)
    ended = train(config, tmp_path / 'run', end, begin=begin)
    if ended.code == NOT_ALLOWED:
        pytest.skip('this process may not mount file systems')
    assert ended.code == SCRIPT_CODE
    assert [path for path in ended.written if path.is_file()] == []
    (files,) = (
        line for line in ended.console.splitlines() if endings.IN_FOLDER in line
    )
    assert files.count('recommended') == (end is endings.put_a_folder_there)
    assert '.mmgpu' not in files
    assert said in ended.last_lines[1]
    assert f'mmgpu recommend {tmp_path / "run"}' in ended.last_lines[0]
    assert ended.console.count(said) == 1


def test_a_config_that_was_built_in_memory_is_written_whole(tmp_path):
    loaded = Config.fromfile(write_configs(tmp_path)).to_dict()
    ended = train(loaded, tmp_path / 'run')
    path = expect_it(ended, 'config')
    assert ended.last_lines[0].split()[1] == 'train'
    assert find_change(loaded, copy_of(path)).keys() >= {'num_workers'}


def copy_of(path: Path) -> dict[str, Any]:
    """Returns a config's settings without ``launcher``."""
    return {k: v for k, v in read_settings(path).items() if k != 'launcher'}


def test_where_nothing_is_to_change_there_is_none(tmp_path):
    config = write_configs(tmp_path, item_s=0.0)
    ended = train(config, tmp_path / 'run')
    assert (ended.code, ended.written) == (SCRIPT_CODE, [])
    command, why = ended.last_lines
    assert command.endswith(f'mmgpu recommend {tmp_path / "run"}')
    assert 'nothing is to change' in why


def test_a_pure_python_config_with_relative_bases_is_written_whole(tmp_path):
    config = write_configs(tmp_path, PURE)
    path = expect_it(train(config, tmp_path / 'run'))
    assert '_base_' not in path.read_text()
    # nor into the folder of the first training, which the script had named
    assert 'work_dir' not in path.read_text()
    assert find_change(copy_of(config), copy_of(path)).keys() >= {'num_workers'}
    assert train(path, tmp_path / 'again', endings.leave).code == 7


def test_what_the_command_line_had_set_is_in_it(tmp_path):
    config = write_configs(tmp_path, num_workers=3)
    options = {WORKERS: 0, 'optim_wrapper.optimizer.lr': 0.02}
    ended = train(config, tmp_path / 'run', options=options)
    path = expect_it(ended)
    trained = copy_of(ended.folder / 'vis_data' / 'config.py')
    assert trained['train_dataloader']['num_workers'] == 0
    change = find_change(trained, copy_of(path))
    assert change['num_workers'] >= 1
    assert Config.fromfile(path).optim_wrapper.optimizer.lr == 0.02


def test_the_recommended_config_can_be_left_out(tmp_path):
    config = write_configs(tmp_path)
    options = {'default_hooks.gpu_efficiency.write_config': False}
    ended = train(config, tmp_path / 'run', options=options)
    assert (ended.code, ended.written) == (SCRIPT_CODE, [])
    assert [line.split()[:3] for line in ended.last_lines[:1]] == [
        ['next', 'mmgpu', 'recommend']
    ]


@pytest.mark.slow
def test_of_two_ranks_one_writes_it(tmp_path):
    more = "model_wrapper_cfg = dict(type='MMDistributedDataParallel', device_ids=None)"
    config = write_configs(tmp_path, endings.CHILD + more, length=144)
    done = train_ranks(config, tmp_path / 'run')
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    ended = Ended(0, done.stdout + done.stderr, tmp_path / 'run')
    path = ended.folder / 'mine_recommended.py'
    assert ended.written == [path]
    assert find_change(copy_of(config), copy_of(path)).keys() >= {'num_workers'}
    assert ended.console.count('_recommended.py') == 1
    # a launcher is not in the command line of a rank
    assert ended.last_lines[0].split()[1] == 'train'


SLOW = """\
import subprocess
import time
with open({pids!r}, 'w') as file:
    for is_apart in (False, True):
        child = subprocess.Popen(['sleep', '60'], start_new_session=is_apart)
        print(child.pid, file=file, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize('is_interrupted', [False, True])
def test_a_child_that_is_slow_is_killed_with_all_that_it_started(
    completed, tmp_path, is_interrupted
):
    config, ended = completed
    text, pids = config.read_text(), tmp_path / 'pids.txt'
    evidence = find_evidence(ended.work_dir)

    def press_ctrl_c() -> None:
        while not (pids.exists() and pids.read_text().count('\n') == 2):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    try:
        config.write_text(text + SLOW.format(pids=str(pids)))
        if is_interrupted:
            threading.Thread(target=press_ctrl_c, daemon=True).start()
            advice = ask_adviser(evidence, limit_s=60.0)
            said = 'Ctrl-C ended the process that writes it'
            assert (advice.config, advice.reason) == (None, said)
        else:
            # a busy machine takes longer to come to what is slow
            for limit_s in (4.0, 20.0):
                began_s = time.monotonic()
                advice = ask_adviser(evidence, limit_s=limit_s)
                assert time.monotonic() - began_s < limit_s + 5
                said = f'it took longer than {limit_s:g} s'
                assert (advice.config, advice.reason) == (None, said)
                if pids.exists() and pids.read_text().count('\n') == 2:
                    break
    finally:
        config.write_text(text)
    started = pids.read_text().split()
    assert len(started) == 2
    assert all(is_gone(int(pid)) for pid in started)


STARTS = """\
import os
import subprocess
with open({pids!r}, 'a') as file:
    for is_apart in (False, True):
        child = subprocess.Popen(['sleep', '60'], start_new_session=is_apart)
        print(child.pid, file=file)
# a daemon, whose parent is gone
os.system('setsid sleep 60 > {pids}.log 2>&1 & echo $! >> {pids}')
child = os.fork()
if not child:
    __import__('time').sleep(60)
with open({pids!r}, 'a') as file:
    print(child, file=file)
{end}
del file, is_apart, child
"""


@pytest.mark.parametrize(
    ('end', 'reason'),
    [('', None), ('os._exit(3)', 'its process ended with exit code 3')],
)
def test_what_a_config_starts_when_it_is_loaded_does_not_stay(
    completed, tmp_path, end, reason
):
    config, ended = completed
    text, pids = config.read_text(), tmp_path / 'pids.txt'
    bystander = subprocess.Popen(['sleep', '60'])
    try:
        config.write_text(text + STARTS.format(pids=str(pids), end=end))
        advice = ask_adviser(find_evidence(ended.work_dir), limit_s=60.0)
    finally:
        config.write_text(text)
        started = [int(pid) for pid in pids.read_text().split()]
        # killed without a word, it leaves what has a session of its own
        apart = started[1:3] if end else []
        deadline_s = time.monotonic() + 10
        while not all(map(is_gone, {*started} - {*apart})):
            if time.monotonic() > deadline_s:
                break
            time.sleep(0.05)
        left = [pid for pid in started if not is_gone(pid)]
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    assert advice.reason == reason
    assert len(started) >= 4
    assert set(left) <= set(apart)
    # of the training's own group nothing is ended
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


def test_ctrl_c_at_the_end_costs_the_config_and_no_more(tmp_path):
    config = write_configs(tmp_path)
    ended = train(config, tmp_path / 'run', endings.interrupt_adviser)
    # what comes after the training is done: after_run, and the script's own
    assert (ended.code, ended.written) == (SCRIPT_CODE, [])
    assert endings.IN_FOLDER in ended.console
    command, why = ended.last_lines
    assert command.endswith(f'mmgpu recommend {tmp_path / "run"}')
    assert 'Ctrl-C' in why


def is_gone(pid: int) -> bool:
    try:
        # a zombie is dead; in a container no parent may collect it
        return parse_process_start(Path(f'/proc/{pid}/stat').read_text()).state == 'Z'
    except FileNotFoundError:
        return True


def test_a_child_that_cannot_be_started_dies_or_babbles_is_a_reason(
    completed, monkeypatch, tmp_path
):
    evidence = find_evidence(completed[1].work_dir)
    monkeypatch.setattr('sys.executable', str(tmp_path / 'python'))
    said = 'no process could be started (No such file or directory)'
    assert ask_adviser(evidence).reason == said
    python, seen = tmp_path / 'python', tmp_path / 'seen.txt'
    python.write_text('#!/bin/sh\nexit 3\n')
    python.chmod(0o755)
    assert ask_adviser(evidence).reason == 'its process ended with exit code 3'
    cards = '"$CUDA_VISIBLE_DEVICES,$HIP_VISIBLE_DEVICES"'
    python.write_text(f'#!/bin/sh\necho {cards} > {seen}\necho no JSON\n')
    said = 'its process gave an answer that cannot be read'
    assert ask_adviser(evidence).reason == said
    # no card is seen, on ROCm neither
    assert seen.read_text() == ',-1\n'


def test_no_child_is_started_where_memory_is_short(completed, monkeypatch):
    evidence = find_evidence(completed[1].work_dir)
    monkeypatch.setattr(process, 'LEAST_FREE_BYTES', 2**60)
    assert 'memory' in (ask_adviser(evidence).reason or '')
    assert os.path.exists(completed[1].folder / 'mine_recommended.py')


def test_no_child_is_started_where_none_could_be_ended(completed, monkeypatch):
    """Tests that no child process is started on a system without ``killpg``."""
    monkeypatch.delattr(os, 'killpg')
    advice = ask_adviser(find_evidence(completed[1].work_dir))
    assert advice.reason == 'this system could not end it with all that it starts'
    assert advice.config is None
