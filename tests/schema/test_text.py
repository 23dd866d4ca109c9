"""Tests texts: templates and values, worded with units, nouns and lists."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass

import msgspec
import pytest

from mmgpu_hooks.schema.text import (
    NOUNS,
    Text,
    Wording,
    decode_text,
    encode_text,
    facts_of,
    listed,
    phrase,
    quoted,
    sentences,
)


@pytest.mark.parametrize(
    ('template', 'facts', 'english'),
    [
        ('{iter_s} each', {'iter_s': 0.412}, '0.412 s each'),
        ('{whole_s:sum}', {'whole_s': 12.345}, '12.3 s'),
        ('{gross_s:.1f} s', {'gross_s': 12.345}, '12.3 s'),
        ('{free_bytes}', {'free_bytes': 3 * 2**30}, '3.0 GiB'),
        ('{wait_share}', {'wait_share': 0.514}, '51 %'),
        ('{run_share:.1%}', {'run_share': 0.0321}, '3.2 %'),
        ('{change:+.1%}', {'change': 0.2}, '+20.0 %'),
        ('{util_pct}', {'util_pct': 42.4}, '42 %'),
        ('{util_pct:exact}', {'util_pct': 0.04}, '0.04 %'),
        ('{change_s:signed}', {'change_s': -0.003}, '-3.0 ms'),
        ('{workers}', {'workers': 1}, '1 worker'),
        ('{new_workers}', {'new_workers': 8}, '8 workers'),
        ('{own_cpus}', {'own_cpus': 0}, '0 CPUs'),
        ('{workers:d} of them', {'workers': 8}, '8 of them'),
        ('{epoch_starts}', {'epoch_starts': 1}, '1 start'),
        ('{usable_cores}', {'usable_cores': 1.5}, '1.5 cores'),
        ('{cores:g} cores', {'cores': 4.0}, '4 cores'),
        ('{pixels:count}', {'pixels': 41_900_000}, '41.9 M'),
        ('{net_s}', {'net_s': None}, 'unknown'),
        ('{cores:g} cores', {'cores': None}, 'unknown cores'),
        ('on {names}', {'names': ('a', 'b')}, 'on a, b'),
        ('{names:&}', {'names': ('a', 'b')}, 'a and b'),
        ('{rows:;}', {'rows': [phrase('{workers}', workers=2), 'b']}, '2 workers; b'),
        ('{found!r}', {'found': 'x'}, "'x'"),
        ('{cores!s}', {'cores': 4}, '4'),
        ('{path}', {'path': '{not a field}'}, '{not a field}'),
        ('batch of {what}', {'what': phrase('{images}', images=1)}, 'batch of 1 image'),
    ],
)
def test_a_fact_is_worded_by_the_end_of_its_name(template, facts, english):
    assert phrase(template, **facts) == english


def test_without_facts_a_template_is_no_format():
    assert phrase('dict(a={})') == 'dict(a={})'


@dataclass(frozen=True)
class Figures:
    iter_s: float = 2.0
    iterations: int = 7


def test_figures_are_taken_from_records_by_their_names():
    said = phrase('{iter_s}, mean of {iterations}', Figures())
    assert said == '2.000 s, mean of 7 iterations'
    assert facts_of(said) == {'iter_s': 2.0, 'iterations': 7}


def test_a_fact_beside_the_template_counts_before_the_record():
    assert phrase('{iter_s}', Figures(), iter_s=0.5) == '0.500 s'


def test_a_text_is_its_english_sentence():
    said = phrase('{workers} wait.', workers=2)
    assert isinstance(said, str)
    assert said == '2 workers wait.' and f'{said}' == '2 workers wait.'
    for other in (copy.deepcopy(said), pickle.loads(pickle.dumps(said))):
        assert (other, other.template, other.facts) == (
            said,
            '{workers} wait.',
            {'workers': 2},
        )


def test_sentences_are_joined_and_empty_ones_left_out():
    said = sentences(phrase('One.'), None, '', phrase('{workers}.', workers=2))
    assert said == 'One. 2 workers.'
    assert facts_of(said) == {'workers': 2}


def test_a_fact_may_be_called_parts():
    said = phrase('{whole_s}: {parts}', whole_s=3.0, parts=('imports', phrase('rest')))
    assert Wording(marks=('<', '>')).say(said) == '<3.000 s: imports, <rest>>'
    sent = msgspec.json.encode(Answer(said), enc_hook=encode_text)
    found = msgspec.json.decode(sent, type=Answer, dec_hook=decode_text).said
    assert facts_of(found) == {'whole_s': 3.0, 'parts': ['imports', 'rest']}


def test_facts_nest_as_texts_do():
    worst = phrase('A save took {wall_s}.', wall_s=3.0)
    said = phrase('{saves}. The worst: {worst}', saves=2, worst=worst)
    assert facts_of(said) == {'saves': 2, 'worst': {'wall_s': 3.0}}


def test_of_texts_in_a_row_the_first_fact_of_a_name_counts():
    said = sentences(phrase('{cores:g}.', cores=1), phrase('{cores:g}.', cores=2))
    assert facts_of(said) == {'cores': 1}


def test_what_is_quoted_has_neither_facts_nor_marks():
    said = quoted('CUDA driver not found')
    assert facts_of(said) == {} == facts_of('a plain string')
    wording = Wording(marks=('<', '>'))
    assert wording.say(said) == said
    assert wording.say('a plain string') == 'a plain string'


def test_each_sentence_that_a_catalog_may_have_is_marked():
    wording = Wording(marks=('<', '>'))
    said = phrase('Of {saves}: {why}, {error}.', saves=2, why=phrase('late'), error='x')
    assert wording.say(said) == '<Of <2 saves>: <late>, x.>'
    assert wording.say(sentences(phrase('A.'), 'b', phrase('C.'))) == '<A.> b <C.>'
    assert wording.say(listed([phrase('a'), 'b'])) == '<a>, b'


@dataclass(frozen=True)
class Answer:
    said: Text
    reason: Text | None = None
    notes: tuple[Text, ...] = ()


def test_a_text_survives_the_way_to_another_process():
    nested = phrase('{n:d} of {what}', n=3, what=phrase('{workers}', workers=1))
    row = sentences(phrase('A.'), phrase('{iter_s}.', iter_s=2.0))
    answer = Answer(nested, quoted('as it is'), (row,))
    sent = msgspec.json.encode(answer, enc_hook=encode_text)
    found = msgspec.json.decode(sent, type=Answer, dec_hook=decode_text)
    assert found == answer
    assert facts_of(found.said) == {'n': 3, 'what': {'workers': 1}}
    assert facts_of(found.notes[0]) == {'iter_s': 2.0}
    assert found.reason.template == ''


@pytest.mark.parametrize('noun', NOUNS)
def test_a_noun_is_counted_in_both_forms(noun):
    single, several = NOUNS[noun]
    assert single.startswith('{n} ') and several.startswith('{n} ')
    assert Wording().count(1, noun) == single.replace('{n}', '1')
    assert Wording().count(2, noun) == several.replace('{n}', '2') != single
