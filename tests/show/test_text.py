from __future__ import annotations

import sys
import unicodedata

import pytest

from mmgpu_hooks.schema.figures import (
    format_bytes,
    format_count,
    format_pct,
    format_seconds,
)
from mmgpu_hooks.show.text import (
    BOUND,
    BREAK,
    bind_units,
    break_wide,
    narrow,
    visible,
    widen,
)


@pytest.mark.parametrize(
    ('write', 'figure', 'text'),
    [
        (format_seconds, 0.0, '0.0 ms'),
        (format_seconds, 0.000085, '85 us'),
        (format_seconds, 0.0123, '12.3 ms'),
        (format_seconds, 0.5, '0.500 s'),
        (format_seconds, 83.14, '83.1 s'),
        (format_seconds, 720, '12.0 min'),
        (format_seconds, None, 'unknown'),
        (format_bytes, 448, '448 bytes'),
        (format_bytes, 40_000, '39 KiB'),
        (format_bytes, 812 * 2**20, '812 MiB'),
        (format_bytes, 3 * 2**30, '3.0 GiB'),
        (format_bytes, 0, '0 MiB'),
        (format_bytes, None, 'unknown'),
        (format_pct, 0, '0 %'),
        (format_pct, 51.4, '51 %'),
        (format_pct, 3.21, '3.2 %'),
        (format_pct, 0.041, '0.04 %'),
        (format_count, 41_943_040, '41.9 M'),
        (format_count, 3250, '3250'),
    ],
)
def test_figures_carry_a_unit_and_unknown_is_a_word(write, figure, text):
    assert write(figure) == text


def test_no_line_breaks_between_a_figure_and_its_unit():
    text = 'it took 2.1 ms, 3 MiB, 51 % and 5 C at 9 MHz; 3 more workers'
    bound = bind_units(text)
    assert len(bound.split()) == len(text.split()) - 5
    assert bound.replace(BOUND, ' ') == text


@pytest.mark.parametrize(
    ('text', 'shown'),
    [
        ('epoch_1.pth, 50 %\tä→\n', 'epoch_1.pth, 50 %\tä→\n'),
        ('\x1b]0;OWNED\x07', '\\x1b]0;OWNED\\x07'),
        ('\u202eab\u2066', '\\u202eab\\u2066'),
        ('\x9b2J\x00\ud800', '\\x9b2J\\x00\\ud800'),
        ('a\rb\r\n', 'a\\rb\r\n'),
    ],
)
def test_control_and_bidi_characters_are_shown(text, shown):
    assert visible(text) == shown


def test_no_character_that_moves_a_cursor_or_turns_a_line_passes():
    turning = {'LRE', 'RLE', 'PDF', 'LRO', 'RLO', 'LRI', 'RLI', 'FSI', 'PDI'}
    for letter in set(map(chr, range(sys.maxunicode + 1))) - set('\t\n'):
        is_control = unicodedata.category(letter) in ('Cc', 'Cs', 'Zl', 'Zp')
        if is_control or unicodedata.bidirectional(letter) in turning:
            assert visible(f'a{letter}b') == f'a{ascii(letter)[1:-1]}b'


@pytest.mark.parametrize(
    ('text', 'widened'),
    [
        ('每个 batch', '每 个\u2060 batch'),
        # no line ends with an opening bracket, or begins with a closing one
        ('慢「见下」。', '慢 「\u2060见 下\u2060」\u2060。\u2060'),
        ('a b', 'a b'),
    ],
    ids=['a space of its own', 'brackets', 'English'],
)
def test_wide_characters_count_twice_and_come_back(text, widened):
    assert widen(text) == widened
    assert narrow(widened) == text


def test_a_line_of_chinese_may_break_between_two_characters():
    assert break_wide('每个 batch 用') == f'每{BREAK}个 batch 用'
    assert break_wide('「见」、a') == f'「见」、{BREAK}a'
