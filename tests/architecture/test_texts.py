"""Tests that sentences for users are templates with named values, not f-strings.

What gettext and Babel would pass over in silence is held here.
"""

from __future__ import annotations

import ast
import re
import string
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.units import has_unit

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / 'mmgpu_hooks'
SOURCES = {
    str(path.relative_to(PACKAGE)): ast.parse(path.read_text())
    for path in sorted(PACKAGE.rglob('*.py'))
}
MAKER = 'phrase'

# Files with f-strings that are sentences still, and how many: a number may only fall.
# What is left are commands to type, code of other processes, reasons in the evidence.
STILL_STRINGS: dict[str, int] = {
    'adviser/process.py': 3,
    'commands/switching_on.py': 3,
    'commands/why.py': 1,
    'config/files.py': 1,
    'hooks/sources.py': 1,
    'judge/doctor.py': 3,
    'judge/validation_findings.py': 1,
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
_FAILS = ('fail', 'UsageError', 'BadParameter')
"""Names of functions that report an error without ``raise``, such as click's."""

# Errors of any class whose message is a string still, and how many by file: no user
# meets them but as words of a bug. A number may only fall.
STILL_ERRORS: dict[str, int] = {
    '__init__.py': 1,
    'config/files.py': 2,
    'config/switches.py': 1,
    'experiment/children.py': 1,
    'hooks/loop_timer.py': 1,
    'judge/console_matchers.py': 1,
    'measure/cgroup.py': 1,
    'measure/flight_recorder.py': 1,
    'measure/gpu.py': 2,
    'measure/host.py': 1,
    'schema/lines.py': 2,
    'schema/regular.py': 3,
}


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, 'id', '') == MAKER:
            yield node


def _find_faults(tree: ast.AST) -> Iterator[str]:
    """Yields wrong calls of ``phrase``, such as with a template that is no literal."""
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
def test_a_call_of_phrase_with_a_fault_is_found(line, fault):
    (found,) = list(_find_faults(ast.parse(line)))[:1]
    assert fault in found


@pytest.mark.parametrize(
    'line', ["phrase('a {}')", "phrase('{a}', record)", "phrase('{a} {b}', a=1, **b)"]
)
def test_a_call_of_phrase_without_a_fault_passes(line):
    assert [*_find_faults(ast.parse(line))] == []


_NUMERIC = re.compile(r'[+]?(?:\.\d+)?[dgfe%]|exact|sum|long|signed')
"""Regular expression of the template formats that only numbers can have."""


def _find_unclear(tree: ast.AST) -> Iterator[str]:
    """Yields numeric fields of ``phrase`` templates whose names tell no unit."""
    for call in _calls(tree):
        template = call.args[0]
        is_format = len(call.args) > 1 or call.keywords
        if not is_format or not isinstance(template, ast.Constant):
            continue
        for _, name, spec, _ in string.Formatter().parse(str(template.value)):
            if name and spec and _NUMERIC.fullmatch(spec) and not has_unit(name):
                yield f'line {call.lineno}: {name}'


@pytest.mark.parametrize('name', SOURCES)
def test_a_figure_names_its_unit(name):
    assert [*_find_unclear(SOURCES[name])] == []


def test_a_figure_without_a_unit_is_found():
    tree = ast.parse("phrase('{left:.1f} of {whole_gib:.1f} GiB', left=1, whole_gib=2)")
    assert [*_find_unclear(tree)] == ['line 1: left']


def _is_sentence(node: ast.JoinedStr) -> bool:
    """True if the literal parts of an f-string hold at least two words."""
    parts = [
        part.value if isinstance(part, ast.Constant) else '0' for part in node.values
    ]
    words = [word for word in ' '.join(map(str, parts)).split() if word.isalpha()]
    return len(words) >= 2 and ' ' in ''.join(map(str, parts))


class _Strings(ast.NodeVisitor):
    """Finds f-strings that are sentences, and error messages that are plain strings."""

    def __init__(self) -> None:
        self.sentences = list[ast.expr]()
        self.errors = list[ast.expr]()

    def visit_Raise(self, node: ast.Raise) -> None:
        if isinstance(node.exc, ast.Call):
            self._add_messages(node.exc)

    def visit_Call(self, node: ast.Call) -> None:
        name = getattr(node.func, 'attr', getattr(node.func, 'id', ''))
        if name in _FAILS:
            self._add_messages(node)
        else:
            self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        if _is_sentence(node):
            self.sentences.append(node)

    def _add_messages(self, call: ast.Call) -> None:
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        self.errors += [each for each in given if _is_message(each)]


def _is_message(said: ast.expr) -> bool:
    """True if an argument is a message as a plain string, not as a ``phrase`` template.

    ``str(error)`` has lost the template of what it says.
    """
    if isinstance(said, ast.Constant):
        return isinstance(said.value, str) and ' ' in said.value
    if isinstance(said, ast.Call):
        return getattr(said.func, 'id', '') in ('str', 'say')
    # a slash joins paths
    is_joined = isinstance(said, ast.BinOp) and isinstance(said.op, ast.Add)
    return is_joined or isinstance(said, ast.JoinedStr)


def _find(kind: str, quoted: tuple[str, ...]) -> dict[str, list[ast.expr]]:
    found = {}
    for name, tree in SOURCES.items():
        if not name.startswith(quoted):
            visitor = _Strings()
            visitor.visit(tree)
            found[name] = getattr(visitor, kind)
    return {name: nodes for name, nodes in found.items() if nodes}


def _count(kind: str, quoted: tuple[str, ...] = _QUOTED) -> dict[str, int]:
    return {name: len(nodes) for name, nodes in _find(kind, quoted).items()}


def test_sentences_that_are_strings_only_become_fewer():
    assert _count('sentences') == STILL_STRINGS


def test_errors_that_are_strings_only_become_fewer():
    assert _count('errors', ('injected/',)) == STILL_ERRORS
    assert sum(STILL_ERRORS.values()) < 30


@pytest.mark.parametrize(
    ('line', 'errors'),
    [
        ("raise UserError('no such file')", 1),
        ("raise ValueError(f'{a} is odd')", 1),
        ("raise click.BadParameter('not a ' + kind)", 1),
        ("self.fail(f'expected {a}', param, ctx)", 1),
        ('raise UserError(str(error))', 1),
        ("raise UserError(phrase('no such file'))", 0),
        ("raise KeyError('name')", 0),
    ],
)
def test_an_error_that_is_a_string_is_counted(line, errors):
    visitor = _Strings()
    visitor.visit(ast.parse(line))
    assert len(visitor.errors) == errors


if __name__ == '__main__':
    # what is left, for the tables
    for kind, quoted in (('sentences', _QUOTED), ('errors', ('injected/',))):
        print(kind, _count(kind, quoted))
        for name, nodes in _find(kind, quoted).items():
            for node in nodes:
                print(f'  {name}:{node.lineno}: {ast.unparse(node)}')
