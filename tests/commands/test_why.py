"""``mmgpu why``: rough console logs, each with its cause, and what is left of a run."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest

from mmgpu_hooks.commands.main import main

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
"""What stands around each line."""
NOISE = {
    'windows': lambda text: text.replace('\n', '\r\n'),
    'bars': lambda text: re.sub(r'(?m)^(?=\S)', BAR, text),
    'mixed': lambda text: text.replace('\n', f'\n{FRAME}, line 1, in forward\n'),
    'bytes': lambda text: 'bild_\udce4\udcff.jpg\n' + text.rstrip('\n'),
    'power shell': lambda text: '\ufeff' + text,
}


@pytest.mark.parametrize('noise', [*LINES, *NOISE])
@pytest.mark.parametrize('name', ['console_logs.txt', 'console_logs_of_others.txt'])
def test_console_logs(ask, tmp_path, name, noise):
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


def test_from_a_pipe_with_line_numbers(ask, monkeypatch):
    log = b'one\r 10%|# | 1/10 [00:01<00:09,  1.00it/s]\ntwo\nKilled\n'
    monkeypatch.setattr(sys, 'stdin', io.TextIOWrapper(io.BytesIO(log)))
    answer = ask('why', '--log', '-')
    assert (answer['cause'], answer['certainty']) == ('oom_host', 'likely')
    assert answer['proof'][0]['line'] == 3
    assert 'With GPUEfficiencyHook on' in answer['do'][-1]


@pytest.mark.parametrize('encoding', ['utf-8', 'utf-16-le', 'utf-16-be'])
def test_of_a_long_log_the_end_counts(ask, capsys, tmp_path, monkeypatch, encoding):
    monkeypatch.setattr('mmgpu_hooks.judge.console_log.MOST_BYTES', 1000)
    monkeypatch.setattr('mmgpu_hooks.commands.why.MOST_BYTES', 1000)
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
    'words', [[], ['--log', 'nowhere'], ['--log', '.'], ['nothing'], ['--log=-']]
)
def test_what_cannot_be_read(capsys, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, 'stdin', None)
    assert main(['why', *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith('mmgpu why: ') and said.count('\n') == 1
