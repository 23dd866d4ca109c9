from __future__ import annotations

import pytest

from mmgpu_hooks.show.escaping import visible
from mmgpu_hooks.show.figures import (
    bind_units,
    format_bytes,
    format_count,
    format_pct,
    format_seconds,
    unbind_units,
)


@pytest.mark.parametrize(
    ('seconds', 'text'),
    [
        (0.0, '0.0 ms'),
        (0.000085, '85 us'),
        (0.0123, '12.3 ms'),
        (0.5, '0.500 s'),
        (83.14, '83.1 s'),
        (720, '12.0 min'),
        (None, 'unknown'),
    ],
)
def test_seconds_carry_a_unit_and_unknown_is_a_word(seconds, text):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ('size', 'text'),
    [
        (448, '448 bytes'),
        (40_000, '39 KiB'),
        (812 * 2**20, '812 MiB'),
        (3 * 2**30, '3.0 GiB'),
        (0, '0 MiB'),
        (None, 'unknown'),
    ],
)
def test_bytes_carry_a_unit_and_unknown_is_a_word(size, text):
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ('share', 'text'), [(0, '0 %'), (51.4, '51 %'), (3.21, '3.2 %'), (0.041, '0.04 %')]
)
def test_small_shares_keep_their_digits(share, text):
    assert format_pct(share) == text


def test_millions_are_told_from_a_few():
    assert format_count(41_943_040) == '41.9 M'
    assert format_count(3250) == '3250'


def test_no_line_breaks_between_a_figure_and_its_unit():
    text = 'it took 2.1 ms, 3 MiB, 51 % and 5 C at 9 MHz; 3 more workers'
    bound = bind_units(text)
    assert len(bound.split()) == len(text.split()) - 5
    assert unbind_units(bound) == text


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
