"""Parses a config's text by ``ast``, and finds where a setting is written; no I/O.

The last statement that sets it decides. What is not understood is found nowhere: the
setting then gets a statement of its own at the end, and the proof is the judge.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Union

from mmgpu_hooks.config.loading import KeyPath, RefusedError
from mmgpu_hooks.schema.text import phrase

Display = Union[ast.Call, ast.Dict]
"""Type: syntax node of a ``dict(...)``, an ``x.update(...)`` or a ``{...}``."""

UNKNOWN = '?'
"""Placeholder for a subscript that is no string or integer literal."""

_LINE = re.compile(r'[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+\Z')


class Module:
    """Parsed config: its text, its lines and its syntax tree by ``ast``.

    Args:
        text: Its source.
        original: The module before the first edit. Default: this one.

    Raises:
        RefusedError: If it is no Python.
    """

    def __init__(self, text: str, original: Module | None = None) -> None:
        try:
            body = ast.parse(text).body
            self.is_lazy = any(map(is_read_base, body))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            said = getattr(error, 'msg', None) or ' '.join(str(error).split())
            raise RefusedError(
                phrase(
                    'expected valid Python, found a syntax error ({said}); mend '
                    'it first',
                    said=said,
                ),
                getattr(error, 'lineno', None),
            ) from error
        self.body = [statement for statement in body if not is_read_base(statement)]
        """Top-level statements of the config, without ``with read_base():``.

        What is imported there is inherited."""
        self.text = text
        self.original = original or self
        self.lines = split_lines(text)
        ended = [re.search(r'(\r\n|\n|\r)\Z', line) for line in self.lines[:1]]
        self.newline = ended[0].group() if ended and ended[0] else '\n'
        self._starts = [0]
        for line in self.lines:
            self._starts.append(self._starts[-1] + len(line))

    @property
    def is_script(self) -> bool:
        """True if the file is a script: it sets no variable and inherits no config."""
        return not self.is_lazy and not any(map(_sets_variable, self.body))

    def offset(self, line: int, column: int) -> int:
        """Returns the index in the text for ast's line and column (bytes)."""
        start = self._starts[line - 1]
        if not column or (text := self.lines[line - 1]).isascii():
            return start + column
        return start + len(text.encode()[:column].decode())

    def span(self, node: Any) -> tuple[int, int]:
        """Returns the start and end index of a syntax node in a config's text."""
        start = self.offset(node.lineno, node.col_offset)
        return start, self.offset(node.end_lineno, node.end_col_offset)

    def code(self, node: Any) -> str:
        """Returns the source code of a syntax node."""
        return self.text[slice(*self.span(node))]

    def list_uses(self, name: str) -> list[ast.Name]:
        """Lists the syntax nodes of a config that read or set a given variable."""
        return [
            node
            for statement in self.body
            # walking them all would take long
            if name in self.code(statement)
            for node in ast.walk(statement)
            if isinstance(node, ast.Name) and node.id == name
        ]

    def is_bound(self, name: str) -> bool:
        """True if the config's own text sets a name, not only a base's text."""
        return any(isinstance(use.ctx, ast.Store) for use in self.list_uses(name))


def split_lines(text: str) -> list[str]:
    """Splits a text at newlines only, unlike ``str.splitlines``, and keeps them."""
    return _LINE.findall(text)


def _sets_variable(node: ast.AST) -> bool:
    """Returns True if a statement, or one in it, sets a variable of its module."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return False
    return isinstance(node, (ast.Assign, ast.AnnAssign)) or any(
        map(_sets_variable, ast.iter_child_nodes(node))
    )


def is_read_base(statement: ast.stmt) -> bool:
    """True if a statement is ``with read_base():``."""
    return isinstance(statement, ast.With) and (
        ast.unparse(statement.items[0].context_expr) == 'read_base()'
    )


def parse_chain(node: ast.AST) -> tuple[str, ...]:
    """Parses the expression ``a.b['c'][0]`` to keys ``('a', 'b', 'c', '0')``."""
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
    """True if an expression is a literal other than a dict, list, tuple or set."""
    return is_constant(node) and not isinstance(
        ast.literal_eval(node), (dict, list, tuple, set)
    )


def is_constant(node: ast.expr) -> bool:
    """True if an expression is a literal, so that it depends on no variable."""
    try:
        ast.literal_eval(node)
    except (ValueError, SyntaxError, TypeError, RecursionError):
        return False
    return True


def is_display(node: ast.AST | None) -> bool:
    """True if a syntax node is ``dict(...)`` or ``{...}``."""
    if isinstance(node, ast.Call):
        return parse_chain(node.func) == ('dict',)
    return isinstance(node, ast.Dict)


@dataclass(frozen=True)
class Entry:
    """Entry of a ``dict(...)`` or list in a config's text: key, value, place."""

    key: str | None
    """Key of the entry in a dict; ``None`` for ``**x``, ``x`` or ``{x: y}``."""

    value: Any
    """Syntax node of the entry's value."""

    stop: int = 0
    """Index in the text at which the entry ends, with any brackets around its value."""

    comma: int | None = None
    """Index in the text of the comma after the entry; ``None`` without a comma."""

    gap: str = ''
    """Text from the entry's end (or its comma) to the next entry or closing bracket."""

    @property
    def tail(self) -> int:
        """Index in the text at which the gap after the entry and its comma starts."""
        return self.stop if self.comma is None else self.comma + 1


def parse_entries(display: Display | ast.List) -> list[Entry]:
    """Lists the entries of a ``dict(...)`` or list, in the order of the text."""
    if isinstance(display, ast.List):
        return [Entry(None, value) for value in display.elts]
    if isinstance(display, ast.Dict):
        pairs = zip(display.keys, display.values)
        return [Entry(parse_string(key), value) for key, value in pairs]
    found = [Entry(None, value) for value in display.args]
    found += [Entry(item.arg, item.value) for item in display.keywords]
    return sorted(found, key=lambda entry: (entry.value.lineno, entry.value.col_offset))


@dataclass(frozen=True)
class SettingPlace:
    """Place in a config's text where a setting is written or can be added."""

    kind: Literal['value', 'missing', 'nowhere']
    """Kind of the place: the setting's value, a dict that lacks it, or none found.

    ``value``: ``node`` is its value; ``missing``: ``node`` is the display that lacks
    it; ``nowhere``: it is inherited, or set in a way that is not understood."""

    node: Any = None
    """Syntax node of the setting's value, or of the dict that lacks the setting."""

    rest: KeyPath = ()
    """Keys from the dict that lacks the setting down to the setting."""

    statement: Any = None
    """Syntax node of the statement in which the setting is, or can be added."""


_NOWHERE = SettingPlace('nowhere')


def locate_setting(module: Module, path: KeyPath) -> SettingPlace:
    """Finds the place of one setting in the text of a config.

    Args:
        module: The parsed config.
        path: The top-level name, such as ``train_dataloader``, and the keys below it.
    """
    space: SettingPlace | None = None
    for statement in reversed(module.body):
        # most statements do not name it, and walking them would take long
        if path[0] not in module.code(statement):
            continue
        place = _locate_in(statement, path)
        if place is None:
            continue
        if place.kind == 'value':
            return place
        space = space or place
        # before x.update(...) without the key another statement may set it
        if place.kind == 'nowhere' or not isinstance(statement, ast.Expr):
            break
    return space or _NOWHERE


def _locate_in(statement: ast.stmt, path: KeyPath) -> SettingPlace | None:
    """Finds a setting's place in one statement; ``None`` if it sets something else."""
    write = _parse_write(statement)
    if write.value is None or len(write.targets) != 1:
        parts: Sequence[ast.AST] = write.targets or [statement]
        nodes = (node for part in parts for node in ast.walk(part))
        is_named = any(parse_chain(node)[-1:] == path[:1] for node in nodes)
        return _NOWHERE if is_named else None
    keys = parse_chain(write.targets[0])
    keys = keys[1:] if keys[0] == '_base_' else keys
    if keys != path[: len(keys)]:
        return None
    rest = path[len(keys) :]
    return _descend(SettingPlace('value', write.value, rest, statement=statement))


class _Assignment(NamedTuple):
    """Targets and value of a statement that assigns a variable or an item."""

    targets: list[ast.expr]
    """Syntax nodes that the statement assigns to; empty if it assigns nothing."""
    value: ast.expr | None


def _parse_write(statement: ast.stmt) -> _Assignment:
    """Parses a statement ``x = y`` or ``x.update(y)`` to targets and value."""
    if isinstance(statement, ast.Assign):
        return _Assignment(statement.targets, statement.value)
    if isinstance(statement, ast.AnnAssign):
        return _Assignment([statement.target], statement.value)
    call = statement.value if isinstance(statement, ast.Expr) else None
    function = call.func if isinstance(call, ast.Call) else None
    if not isinstance(function, ast.Attribute) or function.attr != 'update':
        return _Assignment([], None)
    assert isinstance(call, ast.Call)
    is_dict = len(call.args) == 1 and is_display(call.args[0])
    return _Assignment([function.value], call.args[0] if is_dict else call)


def _descend(place: SettingPlace) -> SettingPlace:
    """Finds a setting's place inside nested dicts by its remaining keys."""
    node, rest = place.node, place.rest
    if not rest:
        return place
    statement = place.statement
    is_update = isinstance(statement, ast.Expr) and statement.value is node
    if not is_display(node) and (not is_update or node.args):
        return _NOWHERE
    entries = parse_entries(node)
    found = [index for index, entry in enumerate(entries) if entry.key == rest[0]]
    if not found:
        return replace(place, kind='missing')
    # the last one has the last word, unless **x comes after it
    index = found[-1]
    may_follow = any(entry.key is None for entry in entries[index:])
    if isinstance(node, ast.Dict) and may_follow:
        return _NOWHERE
    return _descend(replace(place, node=entries[index].value, rest=rest[1:]))
