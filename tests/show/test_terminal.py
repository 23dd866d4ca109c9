from __future__ import annotations

import io
import sys

import pytest

from mmgpu_hooks.schema.text import phrase, quoted
from mmgpu_hooks.show.document import Fact, Item, Section, Table
from mmgpu_hooks.show.terminal import render
from mmgpu_hooks.show.text import guarded_output

PATH = '/runs/' + 'a-long-name/' * 12 + 'gpu_efficiency.jsonl'
OWNED = '\x1b]0;OWNED\x07\u202e[bold]'


@pytest.mark.parametrize('width', [40, 80, 200])
def test_lines_keep_to_the_width_and_nothing_is_cut(width):
    sections = [
        Section(
            quoted(PATH),
            sentences=['word ' * 40],
            facts=[Fact(quoted('evidence'), PATH)],
        ),
        Section(
            table=Table(
                [quoted('name'), quoted('size'), quoted('')],
                [('a', '1 s', 'word ' * 9)],
            ),
            items=[Item(PATH)],
        ),
    ]
    text = render(sections, width=width)
    assert max(map(len, text.splitlines())) <= min(width, 100)
    squeezed = ''.join(text.split())
    assert squeezed.count(PATH) >= 2
    assert '…' not in text


def test_code_is_never_wrapped():
    text = render([Section(code=f'mmgpu recommend {PATH}\n+ a\n- b')], width=40)
    assert text.splitlines() == [f'mmgpu recommend {PATH}', '+ a', '- b']


@pytest.mark.parametrize('color', [False, True])
def test_no_part_commands_the_terminal(color):
    everything = Section(
        quoted(OWNED),
        sentences=[OWNED],
        facts=[Fact(quoted(OWNED), OWNED)],
        table=Table([quoted(OWNED)], [(OWNED,)]),
        items=[Item(OWNED, OWNED, OWNED, 'problem')],
        code=OWNED,
    )
    text = render([everything], color=color)
    assert '\x1b]' not in text
    assert '\x07' not in text
    assert '\u202e' not in text
    assert ('\x1b[1m' in text) is color
    assert text.count('[bold]') == 10


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ('stream', 'shown'),
    [
        (io.StringIO(), '\\x1b[1mbold\\x1b[0m \\x1b]0;x\\x07 \\u202e\n'),
        # colours of our own pass, other sequences do not
        (Terminal(), '\x1b[1mbold\x1b[0m \\x1b]0;x\\x07 \\u202e\n'),
    ],
)
def test_what_is_printed_is_guarded(stream, shown, monkeypatch):
    monkeypatch.setattr(sys, 'stdout', stream)
    with guarded_output():
        print('\x1b[1mbold\x1b[0m \x1b]0;x\x07 \u202e')
        sys.stdout.writelines([])
        assert sys.stdout.isatty() is isinstance(stream, Terminal)
    assert stream.getvalue() == shown
    assert sys.stdout is stream


def test_a_long_path_breaks_behind_a_slash_and_stays_whole_in_a_table():
    path = f'/home/user/{"project/" * 8}work_dirs/rtmdet_tiny/20261130_050505'
    table = Table([quoted('run')], [(quoted(path),)])
    section = Section(phrase('Runs'), sentences=[phrase('It reads {path}.', path=path)])
    lines = render([section]).splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.endswith('/') for line in lines)
    assert path in ''.join(line.strip() for line in lines)
    tabled = render([Section(phrase('Runs'), table=table)])
    assert path in tabled
