"""Reads the text of a config with ``ast``: offsets, literals, uses of a name. Pure."""

from __future__ import annotations

import ast
import re
from typing import Any, Union

from mmgpu_hooks.config.outcome import RefusedError

Display = Union[ast.Call, ast.Dict, ast.List]
"""A ``dict(...)`` call, ``x.update(...)``, a ``{...}`` literal or a list."""

UNKNOWN = '?'
"""Stands for a subscript that is neither a string nor an integer literal."""

_LINE = re.compile(r'[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+\Z')


class Module:
    """A parsed config.

    Args:
        text: Its source.
        original: The module before the first edit. Default: this one.

    Raises:
        RefusedError: If it is no Python.
    """

    def __init__(self, text: str, original: Module | None = None) -> None:
        try:
            body = ast.parse(text).body
            self.is_lazy = any(map(_is_read_base, body))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            said = getattr(error, 'msg', None) or ' '.join(str(error).split())
            raise RefusedError(
                f'expected valid Python, found a syntax error ({said}); mend it first',
                getattr(error, 'lineno', None),
            ) from error
        self.body = [one for one in body if not _is_read_base(one)]
        """Statements; what is imported in ``with read_base():`` is inherited."""
        self.text = text
        self.original = original or self
        self.lines = split_lines(text)
        ended = [re.search(r'(\r\n|\n|\r)\Z', line) for line in self.lines[:1]]
        self.newline = ended[0].group() if ended and ended[0] else '\n'
        self._starts = [0]
        for line in self.lines:
            self._starts.append(self._starts[-1] + len(line))

    def offset(self, line: int, column: int) -> int:
        """The index in the text of one of ast's positions, which count bytes."""
        start = self._starts[line - 1]
        if not column or (text := self.lines[line - 1]).isascii():
            return start + column
        return start + len(text.encode()[:column].decode())

    def span(self, node: Any) -> tuple[int, int]:
        """Where a node starts and stops in the text."""
        start = self.offset(node.lineno, node.col_offset)
        return start, self.offset(node.end_lineno, node.end_col_offset)

    def code(self, node: Any) -> str:
        """The source of a node."""
        return self.text[slice(*self.span(node))]

    def list_uses(self, name: str) -> list[ast.Name]:
        """Every place that reads or sets a variable."""
        return [
            node
            for statement in self.body
            # walking them all would take long
            if name in self.code(statement)
            for node in ast.walk(statement)
            if isinstance(node, ast.Name) and node.id == name
        ]

    def is_bound(self, name: str) -> bool:
        """Whether the file gives a name a value, and not its bases alone."""
        return any(isinstance(use.ctx, ast.Store) for use in self.list_uses(name))


def split_lines(text: str) -> list[str]:
    """Splits at newlines alone, unlike ``str.splitlines``, and keeps them."""
    return _LINE.findall(text)


def _is_read_base(statement: ast.stmt) -> bool:
    """Says whether it is ``with read_base():``."""
    return isinstance(statement, ast.With) and (
        ast.unparse(statement.items[0].context_expr) == 'read_base()'
    )


def parse_chain(node: ast.AST) -> tuple[str, ...]:
    """Reads ``a.b['c'][0]`` as ``('a', 'b', 'c', '0')``."""
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute):
        return (*parse_chain(node.value), node.attr)
    if isinstance(node, ast.Subscript):
        key = getattr(node.slice, 'value', None)
        known = type(key) in (str, int)
        return (*parse_chain(node.value), str(key) if known else UNKNOWN)
    return (UNKNOWN,)


def parse_string(node: ast.AST | None) -> str | None:
    """Returns the value of a string literal, ``None`` for anything else."""
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, str) else None


def is_literal(node: ast.expr) -> bool:
    """Says whether it is a single value, written out."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, SyntaxError, TypeError, RecursionError):
        return False
    return not isinstance(value, (dict, list, tuple, set))


def is_display(node: ast.AST | None) -> bool:
    """Says whether it is ``dict(...)`` or ``{...}``."""
    if isinstance(node, ast.Call):
        return parse_chain(node.func) == ('dict',)
    return isinstance(node, ast.Dict)
