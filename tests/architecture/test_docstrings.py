"""Tests that few docstrings begin with words such as "What", "Of" or "Whether".

A first line that begins like an answer ("What ...", "Of ...", "Whether ...") leans on a
question that its reader has not asked. The words below are the sign of that and not the
fault, so a few may stay.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / 'mmgpu_hooks'

SIGNS = (
    'all of',
    'all that',
    'and',
    'as',
    'beside',
    'besides',
    'but',
    'by',
    'from',
    'how',
    'its',
    'likewise',
    'none',
    'of',
    'since',
    'such',
    'that',
    'the same',
    'their',
    'those',
    'until',
    'what',
    'when',
    'where',
    'whether',
    'which',
    'who',
    'whose',
    'why',
)
MOST_SHARE = 0.02


class Docstring(NamedTuple):
    """Docstring of a module, class, function or attribute, with its file and line."""

    file: str
    line: int
    name: str
    text: str

    @property
    def first_line(self) -> str:
        return self.text.strip().split('\n', 1)[0]

    @property
    def has_sign(self) -> bool:
        """True if the first line begins with an unwanted word, such as "what"."""
        words = re.findall(r"[\w']+", self.first_line.lower())[:2]
        return not {' '.join(words), *words[:1]}.isdisjoint(SIGNS)

    def __str__(self) -> str:
        return f'{self.file}:{self.line}: {self.name}: {self.first_line}'


def list_docstrings(file: str, tree: ast.Module) -> Iterator[Docstring]:
    """Yields the docstrings of a module and its classes, functions and attributes."""
    for node in ast.walk(tree):
        if isinstance(
            node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        ):
            text = ast.get_docstring(node)
            if text:
                name = getattr(node, 'name', 'module')
                yield Docstring(file, node.body[0].lineno, name, text)
        if isinstance(node, (ast.Module, ast.ClassDef)):
            yield from _list_of_attributes(file, node)


def _list_of_attributes(
    file: str, owner: ast.Module | ast.ClassDef
) -> Iterator[Docstring]:
    """Yields attribute docstrings: the strings right after an assignment."""
    for before, node in zip(owner.body, owner.body[1:]):
        if not isinstance(before, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            target = (
                before.targets[0] if isinstance(before, ast.Assign) else before.target
            )
            name, text = ast.unparse(target), node.value.value
            if isinstance(text, str):
                yield Docstring(file, node.lineno, name, text)


def test_few_docstrings_begin_like_the_answer_to_a_question():
    found = [
        docstring
        for path in sorted(PACKAGE.rglob('*.py'))
        for docstring in list_docstrings(
            str(path.relative_to(ROOT)), ast.parse(path.read_text())
        )
    ]
    signed = [docstring for docstring in found if docstring.has_sign]
    by_package = Counter(str(Path(docstring.file).parent) for docstring in signed)
    assert len(signed) < MOST_SHARE * len(found), (
        f'{len(signed)} of {len(found)} docstrings begin with a word that leans on '
        f'a question; fewer than {MOST_SHARE:.0%} may. By package: '
        f'{dict(by_package.most_common())}. Say what it is or does:\n'
        + '\n'.join(map(str, signed))
    )


@pytest.mark.parametrize(
    'first_line',
    [
        'What a start began to do.',
        'Whether the plain loop waits for something.',
        'Of all files in it.',
        '``None`` where nothing is known.',
        'All that one rank recorded.',
        'The same of a validation.',
        'Its median.',
    ],
)
def test_a_first_line_that_leans_on_a_question_is_found(first_line):
    assert Docstring('a.py', 1, 'name', first_line).has_sign


@pytest.mark.parametrize(
    'first_line',
    [
        'True if the plain loop waits for something.',
        'Bytes of all files in the folder.',
        'The live settings of a loader.',
        'Ordinary lines before it.',
        'Assess one rank of a run.',
    ],
)
def test_a_first_line_that_stands_alone_passes(first_line):
    assert not Docstring('a.py', 1, 'name', first_line).has_sign


def test_docstrings_of_attributes_are_read_too():
    tree = ast.parse(
        '"""A module."""\n'
        'LIMIT = 3\n'
        '"""Most of them."""\n'
        'class Row:\n'
        '    """A row."""\n'
        '    name: str\n'
        '    """Its name."""\n'
        '    def read(self):\n'
        '        """Read it."""\n'
    )
    names = {docstring.name for docstring in list_docstrings('a.py', tree)}
    assert names == {'module', 'LIMIT', 'Row', 'name', 'read'}
