"""Tests ``mmgpu why`` on console logs with known causes, and on runs' folders."""

from __future__ import annotations

import io
import os
import re
import sys
import threading
from pathlib import Path

import pytest

from fakes.forked import run_forked
from fakes.replaced import replace
from fakes.runs import make_evidence, make_run, write_run
from mmgpu_hooks.commands.main import main
from mmgpu_hooks.judge.console_log import read_log

HERE = Path(__file__).parent
STAMP = '2024/05/01 09:{:02d}:00 - mmengine - INFO - '
ITERATION = 'Epoch(train)  [{}][{:3d}/100]  lr: 1.0e-02  eta: 1:00:00  loss: 0.{}'
BAR = '\r 12%|█▏        | 12/100 [00:03<00:21,  4.13it/s]'
FRAME = '[rank3]:   File "/env/lib/python3.9/site-packages/torch/nn/modules/module.py"'


def _iterations(epoch: int) -> str:
    return '\n'.join(
        STAMP.format(n) + ITERATION.format(epoch, 10 * n, n + 3) for n in range(1, 8)
    )


def _read_cases(name: str) -> list[tuple[str, str, str]]:
    text = (HERE / name).read_text()
    text = text.replace('@run', _iterations(1)).replace('@more', _iterations(2))
    blocks = re.findall(r'^## (\w+) ?(.*)\n((?:(?!## ).*\n)*)', text, re.MULTILINE)
    return [(cause, f'{cause} {title}', log) for cause, title, log in blocks]


LINES = {
    'plain': '{}',
    'colours': '\x1b[31m{}\x1b[0m',
    'ranks': '[rank1]: {}',
    'pod': '2024-06-01T10:00:00.123456789Z stderr F {}',
    'srun': '1: {}',
}
"""Templates of how launchers and loggers decorate a line of console output."""
NOISE = {
    'windows': lambda text: text.replace('\n', '\r\n'),
    'bars': lambda text: re.sub(r'(?m)^(?=\S)', BAR, text),
    'mixed': lambda text: text.replace('\n', f'\n{FRAME}, line 1, in forward\n'),
    'bytes': lambda text: 'bild_\udce4\udcff.jpg\n' + text.rstrip('\n'),
    'power shell': lambda text: '\ufeff' + text,
}


@pytest.mark.parametrize('noise', [*LINES, *NOISE])
@pytest.mark.parametrize(
    'name',
    [
        'console_logs.txt',
        'console_logs_of_others.txt',
        'console_logs_of_ranks.txt',
        'console_logs_of_ends.txt',
    ],
)
def test_real_console_logs_have_their_cause_under_any_noise(ask, tmp_path, name, noise):
    wrong, path = [], tmp_path / 'slurm.out'
    encoding = 'utf-16-le' if noise == 'power shell' else 'utf-8'
    for cause, title, log in _read_cases(name):
        text = re.sub('.+', lambda m: LINES.get(noise, '{}').format(m[0]), log)
        text = NOISE.get(noise, str)(text)
        path.write_bytes(text.encode(encoding, 'surrogateescape'))
        answer = ask('why', '--log', path)
        if answer['cause'] != (None if cause == 'null' else cause):
            wrong.append((title, answer['cause'], answer['proof']))
        if cause not in ('null', 'unknown'):
            assert answer['proof'][0]['line'] and answer['do'], title
        named = title.rpartition('(')[2].rstrip(')')
        assert cause != 'sample_raised' or named == title or named in answer['sample']
    assert not wrong


def test_a_log_from_a_pipe_is_judged_with_line_numbers(ask, monkeypatch):
    log = b'one\r 10%|# | 1/10 [00:01<00:09,  1.00it/s]\ntwo\nKilled\n'
    monkeypatch.setattr(sys, 'stdin', io.TextIOWrapper(io.BytesIO(log)))
    answer = ask('why', '--log', '-')
    assert (answer['cause'], answer['certainty']) == ('oom_host', 'likely')
    assert answer['proof'][0]['line'] == 3
    assert 'With GPUEfficiencyHook on' in answer['do'][-1]


@pytest.mark.parametrize('encoding', ['utf-8', 'utf-16-le', 'utf-16-be'])
def test_of_a_long_log_the_end_counts(ask, capsys, tmp_path, monkeypatch, encoding):
    monkeypatch.setattr('mmgpu_hooks.judge.console_log.MOST_LOG_BYTES', 1000)
    monkeypatch.setattr('mmgpu_hooks.commands.why.MOST_LOG_BYTES', 1000)
    text = ('\ufeff' if '16' in encoding else '') + 'Killed\n' + '.\n' * 2**18
    (tmp_path / 'log').write_text(f'{text}RuntimeError: CUDA out of memory', encoding)
    assert main(['why', str(tmp_path / 'log')]) == 0
    shown = capsys.readouterr()
    assert 'oom_gpu' in shown.out and 'Killed' not in shown.out
    assert f'line {2**18 + 2} ' in shown.out
    assert shown.err.count('\n') == 1 and 'reading the last' in shown.err
    (tmp_path / 'log').write_text(text + ITERATION.format(1, 7, 3), encoding)
    sentence = ask('why', tmp_path / 'log')['sentence']
    assert 'which were not read, says that it ended badly' in sentence
    assert sentence.endswith(f'the last iteration stands in line {2**18 + 2}.')


def test_nothing_reaches_the_terminal_raw(capsys, tmp_path):
    text = (
        'RuntimeError: CUDA out of memory \x07 \u202egnp.\u2066 \x9b31m \x1b]0;owned\n'
    )
    (tmp_path / 'log').write_text(text)
    assert main(['why', '--log', str(tmp_path / 'log')]) == 0
    shown = capsys.readouterr().out
    assert 'oom_gpu (sure)' in shown
    assert not re.search(
        '[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]', shown
    )


@pytest.mark.parametrize(
    'words',
    [[], ['--log', 'nowhere'], ['--log', '.'], ['nothing'], ['--log=-']],
    ids=[
        'no run and no log',
        'no such log',
        'a folder',
        'no such run',
        'a closed standard input',
    ],
)
def test_input_that_cannot_be_read_is_one_line_and_exit_code_2(
    capsys, tmp_path, monkeypatch, words
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, 'stdin', None)
    assert main(['why', *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith('mmgpu why: ') and said.count('\n') == 1


OLD, NEW = '20261120_101500', '20261121_080000'
OUT_OF_MEMORY = 'RuntimeError: CUDA out of memory. Tried to allocate 2 GiB\n'
BAD_CONFIG = (
    '2026/11/21 08:00:01 - mmengine - INFO - Set up\n'
    'Traceback (most recent call last):\n  File "tools/train.py", line 9, in <module>\n'
    "KeyError: 'NoSuchData is not in the mmdet::dataset registry.'\n"
)
LOGGED = '2026/11/20 10:15:01 - mmengine - INFO - Environment\n'


def make_work_dir(work_dir: Path, *attempts: str) -> Path:
    """Writes a work_dir: a completed run, and later attempts without evidence files."""
    vis_data = write_run(work_dir / OLD / 'vis_data', make_evidence())
    (vis_data.parent / f'{OLD}.log').write_text(LOGGED)
    for stamp in attempts:
        (work_dir / stamp).mkdir()
        (work_dir / stamp / f'{stamp}.log').write_text(LOGGED.replace('20 10', '21 08'))
    return work_dir


def test_an_attempt_without_evidence_is_judged_and_named(ask, capsys, tmp_path):
    work_dir, console = make_work_dir(tmp_path / 'two', NEW), tmp_path / 'two.out'
    silent = ask('why', work_dir)
    assert (silent['state'], silent['cause']) == ('unknown', 'unknown')
    assert 'left no evidence' in silent['sentence'] and '--log' in silent['do'][0]
    console.write_text(BAD_CONFIG)
    both = ask('why', work_dir, '--log', console)
    assert (both['state'], both['cause']) == ('ended', 'config_error')
    for answer in (silent, both):
        assert (
            answer['run'].endswith(NEW) and answer['started'] == '2026-11-21 08:00:00'
        )
        (note,) = answer['notes']
        assert OLD in note and 'ended as planned' in note
    assert main(['why', str(work_dir), '--log', str(console)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith('Dead: ') and NEW in shown and OLD in shown


def test_a_console_of_the_older_run_is_judged_with_it(ask, tmp_path):
    work_dir, console = make_work_dir(tmp_path / 'two', NEW), tmp_path / 'old.out'
    console.write_text(LOGGED + OUT_OF_MEMORY)
    answer = ask('why', work_dir, '--log', console)
    assert answer['run'].endswith(OLD) and answer['cause'] == 'oom_gpu'
    assert NEW in answer['notes'][0]


@pytest.mark.parametrize('year', ['2026/', ''], ids=['as in a file', 'on a console'])
def test_a_console_that_ends_before_the_run_began_is_left_out(capsys, tmp_path, year):
    work_dir, console = make_work_dir(tmp_path / 'one'), tmp_path / 'old.out'
    logged = LOGGED.replace('11/20', '11/19').replace('2026/', year)
    console.write_text(logged + OUT_OF_MEMORY)
    assert main(['why', str(work_dir), '--log', str(console)]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith('Completed: It ended as planned')
    assert 'ends before the run began' in shown.err


def test_a_crash_after_a_completed_run_has_its_cause_and_the_run_stays_completed(
    ask, tmp_path
):
    work_dir, console = make_work_dir(tmp_path / 'one'), tmp_path / 'one.out'
    trained = _iterations(1).replace('2024/05/01 09', '2026/11/20 11')
    console.write_text(
        f'{trained}\nTraceback (most recent call last):\n'
        f'  File "evaluate.py", line 3, in main\n{OUT_OF_MEMORY}'
    )
    answer = ask('why', work_dir, '--log', console)
    assert (answer['state'], answer['cause']) == ('completed', 'oom_gpu')
    assert 'what came after it did not' in answer['sentence']
    console.write_text(trained)
    assert ask('why', work_dir, '--log', console)['cause'] is None


def test_a_test_of_a_checkpoint_is_no_attempt_to_train(ask, tmp_path):
    work_dir = make_work_dir(tmp_path / 'two', NEW)
    with (work_dir / NEW / f'{NEW}.log').open('a') as log:
        log.write(
            '2026/11/21 08:00:09 - mmengine - INFO - Epoch(test) [ 50/500]  eta\n'
        )
    answer = ask('why', work_dir)
    assert (answer['state'], answer['notes']) == ('completed', [])
    assert answer['run'].endswith(OLD) and answer['started'] == '2026-11-20 10:15:00'


def test_a_folder_whose_one_attempt_left_no_evidence_is_judged_by_its_log(
    ask, capsys, tmp_path
):
    folder = tmp_path / 'one' / NEW
    folder.mkdir(parents=True)
    (folder / f'{NEW}.log').write_text(LOGGED)
    for path in (folder, folder.parent):
        assert ask('why', path)['run'].endswith(NEW)
    assert main(['recommend', str(folder.parent)]) == 2
    assert 'expected gpu_efficiency.jsonl' in capsys.readouterr().err


def test_other_commands_say_that_a_newer_attempt_has_no_evidence(ask, tmp_path):
    work_dir = make_work_dir(tmp_path / 'two', NEW)
    answer = ask('recommend', work_dir, '--dry-run')
    assert [note for note in answer['notes'] if NEW in note and 'no evidence' in note]
    assert OLD in answer['run']


def test_the_log_named_as_its_folder_is_the_runs_own(ask, tmp_path):
    work_dir = make_work_dir(tmp_path / 'one')
    run = replace(make_evidence(run=make_run()), end=None)
    write_run(work_dir / OLD / 'vis_data', run)
    (work_dir / OLD / 'zzz_test.log').write_text(OUT_OF_MEMORY)
    assert ask('why', work_dir)['cause'] == 'unknown'
    (work_dir / OLD / f'{OLD}.log').rename(work_dir / OLD / '20261120_101459.log')
    assert ask('why', work_dir)['cause'] == 'unknown'


FILES = [
    'zzz.log',
    f'{OLD}.log',
    'vis_data/gpu_efficiency.stack',
    'vis_data/gpu_efficiency.jsonl',
    'memory.events',
]


@pytest.mark.parametrize('kind', ['pipe', 'endless', 'huge'])
@pytest.mark.parametrize('name', FILES)
def test_nothing_in_a_run_keeps_it_waiting(tmp_path, name, kind):
    work_dir = make_work_dir(tmp_path / 'one')
    group = work_dir / OLD
    run = make_run(
        pid=1, process_start=1, hostname=os.uname().nodename, memory_cgroup=str(group)
    )
    write_run(group / 'vis_data', replace(make_evidence(run=run), end=None))
    path = group / name
    path.unlink(missing_ok=True)
    if kind == 'pipe':
        os.mkfifo(path)
    elif kind == 'endless':
        path.symlink_to('/dev/zero')
    else:
        path.touch()
        os.truncate(path, 5 * 2**30)
    if (name, kind) == ('vis_data/gpu_efficiency.jsonl', 'huge'):
        # a line of one run of zeros, read to its end in pieces
        os.truncate(path, 2**28)
    code, out, err = run_forked(['why', str(work_dir)], limit_s=60)
    assert code == (2 if name.endswith('.jsonl') else 0), err
    assert 'Traceback' not in err and (out or err.count('\n') == 1)


def test_a_null_byte_in_the_name_of_a_control_group_is_no_error(ask, tmp_path):
    run = make_run(
        pid=1, process_start=1, hostname=os.uname().nodename, memory_cgroup='a\0b'
    )
    write_run(tmp_path / 'run', replace(make_evidence(run=run), end=None))
    assert ask('why', tmp_path / 'run')['state'] == 'ended'


@pytest.mark.parametrize(
    ('name', 'found'),
    [
        ('/dev/null', 'found a device'),
        ('/dev/zero', 'found a device'),
        ('/proc/self/mem', 'found'),
        ('empty.log', 'found nothing in it'),
        ('pipe', 'found nothing in it'),
        ('folder.log', 'found a folder'),
        ('absent.log', 'found No such file'),
    ],
)
def test_a_log_with_nothing_to_read_is_refused_in_one_line(tmp_path, name, found):
    (tmp_path / 'empty.log').touch()
    (tmp_path / 'folder.log').mkdir()
    os.mkfifo(tmp_path / 'pipe')
    path = str(tmp_path / name)
    code, out, err = run_forked(['why', '--log', path], limit_s=10)
    assert (code, out, err.count('\n')) == (2, '', 1)
    assert err.startswith(f'mmgpu why: {path}: expected a log') and found in err


def test_a_pipe_that_the_shell_names_is_read_to_its_end(ask, tmp_path):
    pipe = tmp_path / 'pipe'
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(OUT_OF_MEMORY,))
    # a shell opens its end first
    end = os.open(pipe, os.O_RDWR)
    writer.start()
    writer.join()
    threading.Timer(0.5, os.close, (end,)).start()
    assert ask('why', pipe)['cause'] == 'oom_gpu'


def test_a_log_that_grows_faster_than_it_is_read_has_an_end(ask, tmp_path, monkeypatch):
    path = tmp_path / 'log'
    path.write_text(f'{OUT_OF_MEMORY}')

    def grow_and_read(file, size, report):
        with path.open('a') as log:
            log.write('.\n' * 2**20)
        read = read_log(file, size, report)
        assert read.lines == 1
        return read

    monkeypatch.setattr('mmgpu_hooks.commands.why.read_log', grow_and_read)
    assert ask('why', path)['cause'] == 'oom_gpu'


def test_a_pipe_without_an_end_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr('mmgpu_hooks.commands.why._MOST_OF_PIPE', 2**22)
    with Path('/dev/zero').open('rb') as zeros:
        monkeypatch.setattr(sys, 'stdin', io.TextIOWrapper(zeros))
        assert main(['why', '--log', '-']) == 2
    assert 'expected a log of at most 4 MiB in a pipe' in capsys.readouterr().err


def test_an_empty_log_beside_a_run_is_passed_over(ask, capsys, tmp_path):
    work_dir = make_work_dir(tmp_path / 'one')
    log = work_dir / OLD / f'{OLD}.log'
    log.write_text('')
    assert ask('why', work_dir)['state'] == 'completed'
    console = tmp_path / 'one.out'
    console.write_text(LOGGED + OUT_OF_MEMORY)
    answer = ask('why', work_dir, '--log', console)
    assert (answer['state'], answer['cause']) == ('completed', 'oom_gpu')
    # what the user named is another matter
    assert main(['why', '--log', str(log)]) == 2
    assert 'found nothing in it' in capsys.readouterr().err


def test_an_empty_log_of_an_attempt_leaves_its_cause_unknown(ask, tmp_path):
    work_dir = make_work_dir(tmp_path / 'two', NEW)
    (work_dir / NEW / f'{NEW}.log').write_text('')
    silent = ask('why', work_dir)
    assert (silent['state'], silent['cause']) == ('unknown', 'unknown')
    assert 'log is empty' in silent['sentence'] and '--log' in silent['do'][0]
    assert OLD in silent['notes'][0]
    console = tmp_path / 'two.out'
    console.write_text(BAD_CONFIG)
    assert ask('why', work_dir, '--log', console)['cause'] == 'config_error'


def test_of_logs_without_a_run_the_first_that_has_lines_counts(ask, tmp_path):
    (tmp_path / 'b.log').write_text('')
    (tmp_path / 'a.log').write_text(OUT_OF_MEMORY)
    assert ask('why', tmp_path)['cause'] == 'oom_gpu'


def test_a_log_that_is_too_large_is_passed_over(capsys, tmp_path):
    work_dir = make_work_dir(tmp_path / 'one')
    os.truncate(work_dir / OLD / f'{OLD}.log', 9 * 2**30)
    assert main(['why', str(work_dir)]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith('Completed: ')
    assert 'left out a log.' in shown.err and 'at most 8.0 GiB' in shown.err


@pytest.mark.parametrize('target', ['user@host.123:456', '.#gpu_efficiency.jsonl'])
@pytest.mark.parametrize('name', ['.#gpu_efficiency.jsonl', 'link.txt'])
@pytest.mark.parametrize('command', ['why', 'recommend', 'report'])
def test_links_that_lead_nowhere_are_passed_over(
    ask, tmp_path, monkeypatch, command, name, target
):
    monkeypatch.chdir(tmp_path)
    work_dir = make_work_dir(tmp_path / 'one')
    for folder in (work_dir, work_dir / OLD, work_dir / OLD / 'vis_data'):
        (folder / name).symlink_to(name if target.startswith('.') else target)
    if command == 'report':
        assert main(['report', str(work_dir)]) == 0
    else:
        words = ['--dry-run'] if command == 'recommend' else []
        assert OLD in ask(command, work_dir, *words)['run']
