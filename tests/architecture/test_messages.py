"""Tests that all messages are translated, and the catalogs up to date."""

from __future__ import annotations

import gettext
import io
from pathlib import Path

import pytest

from fakes.scripts import load_script
from mmgpu_hooks.schema.text import Wording, phrase

pytest.importorskip('babel', reason='extracts messages: requirements/test.txt')

from babel.messages import Catalog
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po

ROOT = Path(__file__).resolve().parents[2]
CHINESE = ROOT / 'mmgpu_hooks/locale/zh_CN/LC_MESSAGES/mmgpu_hooks.po'


@pytest.fixture(scope='module')
def messages():
    """Module of the script behind ``make messages``."""
    return load_script('messages')


@pytest.fixture(scope='module')
def template(messages):
    return messages.extract()


@pytest.mark.parametrize(
    'message',
    [
        '{waiting_share} of the {loading_s} that a batch takes to load is waiting: a '
        'copy of the data on a local disk, fewer and larger files (LMDB) or a cache in '
        'memory would shorten it.',
        'Data-bound, too few workers',
        'Waiting for data',
        'Say where the time of a run went, and rewrite its config.',
        'Config to rewrite; by default the one the run used.',
        'The host ran out of memory',
        'More workers help, because they wait side by side; faster storage, a local '
        'copy or a cache help more.',
        'Judge a run and rewrite its config.',
        '9 times in 10',
    ],
)
def test_a_sentence_is_in_the_template(template, message):
    assert message in template


def test_a_noun_is_in_the_template_with_both_forms(template):
    assert template.get('{n} worker').id == ('{n} worker', '{n} workers')


def test_an_untranslated_plural_falls_back_to_english(messages):
    catalog = Catalog(locale='zh_CN')
    catalog.add(('{n} worker', '{n} workers'), ('{n} 个进程',))
    catalog.add(('{n} save', '{n} saves'), ('',))
    messages.drop_empty_plurals(catalog)
    stream = io.BytesIO()
    write_mo(stream, catalog)
    stream.seek(0)
    wording = Wording(gettext.GNUTranslations(stream))
    assert wording.say(phrase('{saves}', saves=6)) == '6 saves'
    assert wording.say(phrase('{workers}', workers=6)) == '6 个进程'


@pytest.mark.parametrize(
    ('said', 'is_wrong'),
    [('{iter_s} 每次', False), ('{iters} 每次', True), ('', False), ('无', True)],
)
def test_a_placeholder_stands_in_both_languages(messages, said, is_wrong):
    catalog = Catalog(locale='zh_CN')
    catalog.add('{iter_s} each', said)
    assert bool(list(messages.find_faults(catalog))) is is_wrong


@pytest.fixture(scope='module')
def chinese():
    with CHINESE.open('rb') as stream:
        return read_po(stream, locale='zh_CN')


def test_every_message_has_its_chinese_sentence(template, chinese):
    missing = []
    for message in template:
        found = chinese.get(message.id, message.context)
        said = () if found is None else found.string
        forms = said if isinstance(said, tuple) else (said,)
        if message.id and not all(forms or ('',)):
            missing.append(message.id)
    assert missing == []


def test_chinese_sentences_have_the_facts_of_the_english_ones(messages, chinese):
    assert [*messages.find_faults(chinese)] == []


def test_what_is_compiled_is_what_is_written(messages, chinese):
    messages.drop_empty_plurals(chinese)
    stream = io.BytesIO()
    write_mo(stream, chinese)
    assert stream.getvalue() == CHINESE.with_suffix('.mo').read_bytes()
