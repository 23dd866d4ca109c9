from __future__ import annotations

import json
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmgpu_hooks.show.markup import Markup, join, script_json, tag, text

HOSTILE = [
    '</script><script>alert(1)</script>',
    '<!--<script>',
    ']]>',
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    '&lt;b&gt; &amp;',
    'a\u2028b\u2029c',
    'nul\x00 bell\x07 lone \ud800 end',
    '${alert(1)} `x`',
]

anything = st.text(st.characters(), max_size=60) | st.sampled_from(HOSTILE)


class Seen(HTMLParser):
    """What a parser makes of a piece of markup."""

    def __init__(self, markup: str):
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words = ''
        self.feed(markup)
        self.close()

    def handle_starttag(self, name, attributes):
        self.tags.append(name)
        self.attributes += attributes

    def handle_data(self, data):
        self.words += data


def shown(value: str) -> str:
    """The text with what no document can hold replaced."""
    forbidden = {*range(9), 11, 12, *range(14, 32), 127, 0xFFFE, 0xFFFF}
    return ''.join(
        '\ufffd' if ord(c) in forbidden or 0xD800 <= ord(c) < 0xE000 else c
        for c in value
    )


@settings(deadline=None)
@given(anything)
def test_text_in_an_element_reads_as_itself(value):
    seen = Seen(tag('p', value))
    assert seen.tags == ['p']
    assert seen.words == shown(value)


@settings(deadline=None)
@given(anything)
def test_text_in_an_attribute_stays_one_attribute(value):
    seen = Seen(tag('p', title=value))
    assert seen.attributes == [('title', shown(value))]
    assert seen.words == ''


@settings(deadline=None)
@given(anything)
def test_json_in_a_script_reads_back_and_ends_nothing(value):
    written = script_json({'words': [value]})
    assert json.loads(written) == {'words': [value]}
    assert not set('<>&\u2028\u2029') & set(written)


def test_json_has_no_nan():
    with pytest.raises(ValueError, match='not JSON compliant'):
        script_json([float('nan')])


def test_attributes_are_named_as_html_has_them():
    made = tag('a', 'x', class_='b', aria_label='c', hidden=True, title=None, id=False)
    assert made == '<a class="b" aria-label="c" hidden>x</a>'
    assert tag('meta', name='n') == '<meta name="n">'


def test_markup_is_kept_and_nothing_else():
    assert join(Markup('<b>'), '<i>', None, 3) == '<b>&lt;i&gt;3'
    assert text(Markup('<b>') + '<i>') == '&lt;b&gt;&lt;i&gt;'
