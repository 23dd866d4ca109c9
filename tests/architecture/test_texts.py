"""Tests that sentences for users are templates with named values, not f-strings.

What gettext and Babel would pass over in silence is held here.
"""

from __future__ import annotations

import ast
import string
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / 'mmgpu_hooks'
SOURCES = {
    str(path.relative_to(PACKAGE)): ast.parse(path.read_text())
    for path in sorted(PACKAGE.rglob('*.py'))
}
MAKER = 'phrase'

# Files with f-strings that are sentences still, and how many: a number may only fall.
# Their sentences are shown in English in every language.
STILL_STRINGS: dict[str, int] = {
    'adviser/process.py': 5,
    'commands/main.py': 1,
    'commands/switching_on.py': 3,
    'commands/why.py': 1,
    'config/files.py': 2,
    'config/hook_arguments.py': 2,
    'hooks/sources.py': 2,
    'judge/doctor.py': 3,
    'judge/validation_findings.py': 1,
    'optimize/coco_metric.py': 6,
    'show/page.py': 1,
    'show/recommendation.py': 3,
}

# Of what is written for other programs, or repeats what they said.
_QUOTED = (
    'injected/',
    'judge/console_',
    'measure/',
    'adviser/job_comment.py',
    'show/comment.py',
)
_ERRORS = ('UserError', 'EvidenceError', 'RefusedError', 'NoPredictionError')


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, 'id', '') == MAKER:
            yield node


def _find_faults(tree: ast.AST) -> Iterator[str]:
    """Yields calls of ``phrase`` with a template or values that are not as required."""
    for call in _calls(tree):
        template = call.args[0] if call.args else None
        if not isinstance(template, ast.Constant) or not isinstance(
            template.value, str
        ):
            yield f'line {call.lineno}: the template is no literal'
            continue
        names = {keyword.arg for keyword in call.keywords}
        if not names and len(call.args) == 1:
            # no format: braces are text
            continue
        parsed = string.Formatter().parse(template.value)
        fields = {name for _, name, _, _ in parsed if name is not None}
        wrong = sorted(name for name in names - {None} if name not in fields)
        if wrong:
            yield f'line {call.lineno}: not in the template: {wrong}'
        is_open = None in names or len(call.args) > 1
        if not is_open and fields - names:
            yield f'line {call.lineno}: not given: {sorted(fields - names)}'


@pytest.mark.parametrize('name', SOURCES)
def test_a_template_is_one_literal_with_the_names_of_its_facts(name):
    assert [*_find_faults(SOURCES[name])] == []


@pytest.mark.parametrize(
    ('line', 'fault'),
    [
        ("phrase('a' if x else 'b')", 'no literal'),
        ("phrase(f'a {b}')", 'no literal'),
        ('phrase(TEMPLATE, b=1)', 'no literal'),
        ("phrase('{a}', b=1)", "not in the template: ['b']"),
        ("phrase('{a} {b}', b=1)", "not given: ['a']"),
    ],
)
def test_the_law_finds(line, fault):
    (found,) = list(_find_faults(ast.parse(line)))[:1]
    assert fault in found


@pytest.mark.parametrize(
    'line', ["phrase('a {}')", "phrase('{a}', record)", "phrase('{a} {b}', a=1, **b)"]
)
def test_the_law_passes(line):
    assert [*_find_faults(ast.parse(line))] == []


def _is_sentence(node: ast.JoinedStr) -> bool:
    """True if the literal parts of an f-string hold at least two words."""
    parts = [
        part.value if isinstance(part, ast.Constant) else '0' for part in node.values
    ]
    words = [word for word in ' '.join(map(str, parts)).split() if word.isalpha()]
    return len(words) >= 2 and ' ' in ''.join(map(str, parts))


class _Strings(ast.NodeVisitor):
    """Counts f-strings that are sentences, and those within raised errors."""

    def __init__(self) -> None:
        self.sentences, self.errors = 0, 0

    def visit_Raise(self, node: ast.Raise) -> None:
        call = node.exc
        name = call.func if isinstance(call, ast.Call) else None
        if isinstance(name, ast.Name) and name.id in _ERRORS:
            assert isinstance(call, ast.Call)
            said = call.args[0] if call.args else None
            self.errors += isinstance(said, (ast.JoinedStr, ast.Constant))

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        self.sentences += _is_sentence(node)


def _count(kind: str) -> dict[str, int]:
    found = Counter[str]()
    for name, tree in SOURCES.items():
        if name.startswith(_QUOTED):
            continue
        visitor = _Strings()
        visitor.visit(tree)
        found[name] = getattr(visitor, kind)
    return {name: count for name, count in found.items() if count}


def test_sentences_that_are_strings_only_become_fewer():
    assert _count('sentences') == STILL_STRINGS


def test_no_error_is_a_string():
    assert _count('errors') == {}


if __name__ == '__main__':
    # what is left, for the table
    print(_count('sentences'))
