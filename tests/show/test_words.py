"""Tests the choice of the language in which texts are shown."""

from __future__ import annotations

import locale
import sys

import pytest

from fakes.catalogs import write_catalog
from mmgpu_hooks.commands.main import main
from mmgpu_hooks.schema.text import ENGLISH, phrase, sentences
from mmgpu_hooks.show import words

CHINESE = {
    'Judge a run and rewrite its config.': '评判一次训练并改写其配置。',
    '{data_wait_share} of an iteration waits for {workers}.': (
        '一次迭代有 {data_wait_share} 在等待 {workers}。'
    ),
    '{n} worker\0{n} workers': '{n} 个进程',
    'between sentences\4| |': '||',
    'stopped.': '已停止。',
    'the folder for output': '输出文件夹',
}


@pytest.fixture
def chinese(monkeypatch, tmp_path):
    """Folder with a Chinese catalog of a few sentences."""
    write_catalog(tmp_path, 'zh_CN', CHINESE)
    monkeypatch.setattr(words, 'find_folder', lambda: tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ('environ', 'found'),
    [
        ({}, []),
        ({'LANG': 'C.UTF-8'}, []),
        ({'LANG': 'zh_CN.UTF-8'}, ['zh_CN']),
        ({'LANG': 'de_DE@euro'}, ['de_DE']),
        ({'LANGUAGE': 'zh_CN:en', 'LANG': 'de_DE'}, ['zh_CN', 'en']),
        ({'LC_ALL': 'C', 'LANG': 'zh_CN'}, []),
        ({'MMGPU_LANG': 'zh', 'LANG': 'de_DE'}, ['zh_CN']),
        ({'MMGPU_LANG': 'en', 'LANG': 'zh_CN'}, ['en']),
        # it is not the Chinese of the catalog, unless that is asked for
        ({'LANG': 'zh_TW.UTF-8'}, ['zh_TW']),
    ],
)
def test_the_language_is_named_by_the_environment(environ, found):
    assert words.list_languages(environ) == found


def test_a_training_heeds_its_own_variable_alone():
    def ask(environ):
        return words.list_languages(environ, heeds_locale=False)

    assert ask({'LANG': 'zh_CN.UTF-8'}) == []
    assert ask({'MMGPU_LANG': 'zh', 'LANG': 'C'}) == ['zh_CN']


def test_a_catalog_words_what_it_has_and_english_the_rest(chinese):
    wording = words.make_wording(['zh_CN'])
    said = phrase(
        '{data_wait_share} of an iteration waits for {workers}.',
        data_wait_share=0.5,
        workers=2,
    )
    assert said == '50 % of an iteration waits for 2 workers.'
    assert wording.say(said) == '一次迭代有 50 % 在等待 2 个进程。'
    assert wording.say(phrase('Nobody translated {workers}.', workers=1)) == (
        'Nobody translated 1 个进程.'
    )
    assert wording.say(sentences(phrase('stopped.'), phrase('stopped.'))) == (
        '已停止。已停止。'
    )


def test_a_language_without_a_catalog_is_english(chinese):
    for languages in ([], ['en'], ['de_DE'], ['zh_TW']):
        assert words.make_wording(languages) is ENGLISH


def test_commands_speak_the_language_of_the_locale(chinese, monkeypatch, capsys):
    monkeypatch.setenv('LANG', 'zh_CN.UTF-8')
    assert main(['--help']) == 0
    assert '评判一次训练并改写其配置。' in capsys.readouterr().out
    monkeypatch.setenv('MMGPU_LANG', 'en')
    assert main(['--help']) == 0
    assert 'Judge a run and rewrite its config.' in capsys.readouterr().out


class _Stream:
    def __init__(self, encoding):
        self.encoding = encoding


@pytest.mark.parametrize(
    ('encoding', 'is_english'),
    [
        ('utf-8', False),
        ('GBK', False),
        ('ascii', True),
        ('ISO-8859-1', True),
        (None, True),
    ],
)
def test_a_log_without_room_for_other_letters_is_english(
    chinese, monkeypatch, encoding, is_english
):
    monkeypatch.setattr(locale, 'getpreferredencoding', lambda _: 'utf-8')
    monkeypatch.setenv('MMGPU_LANG', 'zh')
    monkeypatch.setattr(sys, 'stdout', _Stream(encoding))
    monkeypatch.setattr(words, '_wording', None)
    assert words.is_english() is is_english


@pytest.mark.parametrize('encoding', ['utf-8', 'gb18030', 'gbk', 'cp936'])
def test_encodings_with_room_have_all_letters_of_a_catalog(encoding):
    assert encoding.startswith(words.ROOMY)
    for path in words.find_folder().rglob('*.po'):
        path.read_text('utf-8').encode(encoding)


def test_a_console_with_room_and_a_log_file_without_are_english(chinese, monkeypatch):
    monkeypatch.setenv('MMGPU_LANG', 'zh')
    monkeypatch.setattr(sys, 'stdout', _Stream('utf-8'))
    monkeypatch.setattr(locale, 'getpreferredencoding', lambda _: 'ANSI_X3.4-1968')
    monkeypatch.setattr(words, '_wording', None)
    assert words.is_english()
