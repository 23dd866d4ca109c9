"""Tests that commands in Chinese print no English sentence."""

from __future__ import annotations

import contextlib
import html
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import click
import pytest
from rich.cells import cell_len

from fakes.experiments import DESCRIBED
from fakes.pages import read_shown
from fakes.wrong_inputs import WRONG, lay_out_wrong, split_words
from golden.facts import CASES, SHARED_CONFIG, lay_out, list_cases
from mmgpu_hooks.commands.main import COMMANDS, main, mmgpu
from mmgpu_hooks.schema.text import ENGLISH
from mmgpu_hooks.show import charts, words
from mmgpu_hooks.show.terminal import render

_ENGLISH = re.compile(
    r"(?<![\w/.=<`'\"{:_-])[A-Za-z][a-z']+(?:,? [a-z][a-z']+)+(?![\w/=({:_-]|\.\w)"
)
"""Regular expression of two English words in a row."""

QUOTED = re.compile(
    # commands as they are typed
    r'python tools|tools/train|mmgpu \w+|pip install|docker run|dask scheduler'
    # the name of a figure's source, which evidence has
    r'|of other programs|training runs on the|loader workers'
    # a comment of the config that is shown
    r'|as it was'
    # what Python, msgspec, PyTorch and the system say
    r'|such file or|was never closed|[Cc]losing quotation|option should be'
    r'|invalid character'
)
_JARGON = {
    *('ms', 'us', 'cpu', 'cuda', 'hook', 'rank', 'worker', 'checkpoint'),
    *(
        'batch',
        'size',
        'pin',
        'memory',
        'unknown',
        'kernel',
        'launch',
        'torch',
        'trace',
    ),
}
"""Words that practitioners leave in English, and units."""


def find_english(out: str, *quotes: str) -> Iterator[str]:
    """Yields English sentences in an output, except for quoted ones."""
    whole = ' '.join(out.split())
    # one may be the end of another
    for quote in sorted(quotes, key=len, reverse=True):
        whole = whole.replace(quote, '')
    for found in _ENGLISH.findall(whole):
        if not QUOTED.search(found) and not {*found.split()} <= _JARGON:
            yield found


def list_reasons(recorded: Any) -> Iterator[str]:
    """Yields the sentences in an evidence file, which are always English."""
    if isinstance(recorded, str) and ' ' in recorded:
        yield recorded
    elif isinstance(recorded, (dict, list)):
        for value in recorded.values() if isinstance(recorded, dict) else recorded:
            yield from list_reasons(value)


@pytest.fixture
def chinese(monkeypatch):
    """Sets the language to Chinese, for click's messages, too."""
    monkeypatch.setenv('MMGPU_LANG', 'zh')
    # click asks gettext, which commands tell by this variable; taken back afterwards
    monkeypatch.setenv('LANGUAGE', '')
    # and it keeps what it was told first of --help
    with click.Context(mmgpu) as ctx:
        for command in (mmgpu, *(mmgpu.get_command(ctx, name) for name in COMMANDS)):
            monkeypatch.setattr(command, '_help_option', None)


def test_english_words_within_a_chinese_sentence_are_found():
    assert [*find_english('等待 and three more words')] == ['and three more words']
    assert [*find_english('用 mmgpu run tools/train.py 训练')] == []
    assert [*find_english('实际 nothing there。')] == ['nothing there']
    assert [*find_english('12 ms hook')] == []


@pytest.mark.parametrize('command', [None, *COMMANDS])
def test_help_is_in_chinese(chinese, capsys, command):
    assert main([*([command] if command else []), '--help']) == 0
    out = capsys.readouterr().out
    assert '用法' in out
    assert [*find_english(out)] == []
    assert [line for line in out.splitlines() if cell_len(line) > 80] == []


@pytest.mark.parametrize('code', ['MG101', 'MG301', 'oom_host', 'compute_bound'])
def test_a_page_of_explain_is_in_chinese_and_no_wider_than_a_terminal(
    chinese, capsys, code
):
    assert main(['explain', code]) == 0
    out = capsys.readouterr().out
    # what is searched for in a console log
    quotes = ('is killed by signal', 'out of memory', 'Out of memory', 'Killed process')
    assert [*find_english(out, *quotes)] == []
    lines = out.splitlines()
    assert 60 < max(map(cell_len, lines)) <= 80
    # punctuation begins no line
    punctuation = tuple('，。、；：）')  # noqa: RUF001
    assert [line for line in lines if line.strip().startswith(punctuation)] == []


@pytest.mark.parametrize('case', list_cases())
def test_an_answer_is_in_chinese_and_no_wider_than_a_terminal(
    chinese, capsys, tmp_path, case
):
    lay_out(CASES / case, tmp_path)
    runs = sorted(tmp_path.glob('run*'))
    asked = ['recommend', '--dry-run', '--details', *map(str, runs)]
    main([*asked, '--config', str(SHARED_CONFIG)])
    answer = capsys.readouterr()
    quotes = list[str]()
    for path in (CASES / case).glob('run*/**/*.jsonl'):
        for line in path.read_text(errors='replace').splitlines():
            with contextlib.suppress(ValueError):
                quotes += list_reasons(json.loads(line))
    assert [*find_english(answer.out, *quotes)] == []
    assert [*find_english(answer.err, *quotes)] == []
    wide = [line for line in answer.out.splitlines() if cell_len(line) > 80]
    # a path, or a command, has no place to be broken at
    assert [line for line in wide if '/' not in line] == []


@pytest.mark.parametrize('describe', DESCRIBED.values(), ids=DESCRIBED)
def test_what_an_experiment_answers_is_in_chinese(monkeypatch, describe):
    monkeypatch.setattr(words, '_wording', words.make_wording(['zh_CN']))
    out = render(describe())
    quotes = ('MemoryError: no room',)
    assert [*find_english(out, *quotes)] == []
    assert [line for line in out.splitlines() if cell_len(line) > 80] == []


@pytest.mark.parametrize('line', WRONG)
def test_an_error_is_in_chinese(chinese, capsys, tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)
    lay_out_wrong(tmp_path)
    main(split_words(line, tmp_path))
    answer = capsys.readouterr()
    said = answer.err or answer.out
    assert [*find_english(answer.out), *find_english(answer.err)] == []
    # no full stop of English, nor two sentences without a space
    assert not re.search(r'(?<![.\w])\.(?![.\w/])', re.sub('[`"\'].*?[`"\']', '', said))


def test_the_page_is_in_chinese(chinese, tmp_path, recwarn):
    lay_out(CASES / 'rtmdet_before', tmp_path)
    page = tmp_path / 'page.html'
    assert main(['report', str(tmp_path / 'run'), '--output', str(page)]) == 0
    said = page.read_text()
    assert '<html lang="zh-CN">' in said
    # whether a font here has the letters or not: a browser has them; nothing warns
    pictures = re.findall('<svg.*?</svg>', said, re.DOTALL)
    assert pictures
    letters = ''.join(re.findall('<text.*?</text>', ''.join(pictures)))
    assert '数据等待' in letters
    assert 'Data wait' not in letters
    assert not any('Glyph' in str(warned.message) for warned in recwarn)
    reasons = list[str]()
    for line in (tmp_path / 'run').rglob('*.jsonl'):
        for record in line.read_text().splitlines():
            reasons += list_reasons(json.loads(record))
    plain = re.sub('<svg.*?</svg>', '', said, flags=re.DOTALL)
    assert [*find_english(html.unescape(read_shown(plain)), *reasons)] == []


def test_charts_are_lettered_by_a_font_that_has_the_letters(chinese, monkeypatch):
    font_manager = pytest.importorskip(
        'matplotlib.font_manager', reason='draws: mmgpu_hooks[plots]'
    )
    monkeypatch.setattr(words, '_wording', words.make_wording(['zh_CN']))
    fonts = [SimpleNamespace(name='DejaVu Sans'), SimpleNamespace(name='SimHei')]
    monkeypatch.setattr(font_manager.fontManager, 'ttflist', fonts)
    assert charts.find_font() == 'SimHei'
    monkeypatch.setattr(font_manager.fontManager, 'ttflist', fonts[:1])
    assert charts.find_font() is None
    last = SimpleNamespace(name='Last Resort High-Efficiency')
    monkeypatch.setattr(font_manager.fontManager, 'ttflist', [*fonts[:1], last])
    assert charts.find_font() == ''
    monkeypatch.setattr(words, '_wording', ENGLISH)
    assert charts.find_font() == ''


def test_options_stand_in_one_column(chinese, capsys):
    assert main(['recommend', '--help']) == 0
    lines = capsys.readouterr().out.splitlines()
    (config,) = (line for line in lines if line.startswith('  --config'))
    (cores,) = (line for line in lines if line.startswith('  --cores'))
    places = [cell_len(re.match(r'  \S+ \S+ +', line)[0]) for line in (config, cores)]
    assert places[0] == places[1]


def test_a_wrong_option_is_refused_in_chinese():
    ended = subprocess.run(
        [sys.executable, '-m', 'mmgpu_hooks', 'predict', '--nothing'],
        env={'MMGPU_LANG': 'zh', 'PYTHONIOENCODING': 'utf-8'},
        capture_output=True,
        encoding='utf-8',
        check=False,
    )
    assert ended.returncode == 2
    assert "没有选项 '--nothing'。" in ended.stderr
    assert [*find_english(ended.stderr)] == []
