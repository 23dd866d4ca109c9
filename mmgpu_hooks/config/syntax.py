"""Reads the text of a config with ``ast``: offsets, literals, uses of a name. Pure.

One :class:`Touch` per place that uses a name, in the order in which Python runs them.
What is not understood is still a touch, so nothing that may matter goes unseen.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import Any, Literal, Union

from mmgpu_hooks.config.outcome import RefusedError

How = Literal['bind', 'write', 'update', 'change', 'lose', 'read']
Display = Union[ast.Call, ast.Dict, ast.List]
"""A ``dict(...)`` call, ``x.update(...)``, a ``{...}`` literal or a list."""

_Parents = dict[Any, Any]

UNKNOWN = '?'
"""Stands for a subscript that is neither a string nor an integer literal."""

_LINE = re.compile(r'[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+\Z')
_READERS = frozenset(('get', 'keys', 'values', 'items', 'copy', 'to_dict'))
_OF_ONE_KEY = frozenset(('get', 'pop', 'setdefault'))
_UNCONDITIONAL = (
    *(ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Delete, ast.Expr, ast.Assert),
    *(ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef),
)


@dataclass(frozen=True)
class Touch:
    """One place in a config that reads or changes a name."""

    how: How
    """``bind``: ``x = ...``; ``write``: ``x['k'] = ...``; ``update``:
    ``x.update(...)``; ``change``: another way to change it; ``lose``: deleted,
    imported, or a function now; ``read``: any use of its value."""

    path: tuple[str, ...]
    """The keys below the name that it concerns, none for the name as a whole."""

    index: int
    """Index of the statement in the module's body."""

    node: Any
    """The assignment, the call, or the expression."""

    inherited: bool = False
    """Whether it is about ``_base_.x``, the value of the bases."""

    conditional: bool = False
    """Whether it stands below an ``if``, ``for``, ``while``, ``try`` or ``with``."""

    @property
    def is_start(self) -> bool:
        """Whether it gives the name a value in every run, whatever it was before."""
        return self.how == 'bind' and not self.path and not self.conditional

    def crosses(self, path: tuple[str, ...]) -> bool:
        """Says whether it may concern the value at a path."""
        pairs = zip(self.path, path)
        return all(a == b or UNKNOWN in (a, b) for a, b in pairs)


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
            self.body = ast.parse(text).body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            said = getattr(error, 'msg', None) or ' '.join(str(error).split())
            raise RefusedError(
                f'expected valid Python, found a syntax error ({said}); mend it first',
                getattr(error, 'lineno', None),
            ) from error
        self.text = text
        self.original = original or self
        self.lines = split_lines(text)
        ended = [re.search(r'(\r\n|\n|\r)\Z', line) for line in self.lines[:1]]
        self.newline = ended[0].group() if ended and ended[0] else '\n'
        self._starts = [0]
        for line in self.lines:
            self._starts.append(self._starts[-1] + len(line))
        self._touches: dict[str, list[Touch]] = {}

    @property
    def is_lazy(self) -> bool:
        """Whether bases are imported in ``with read_base():``."""
        return any(map(_is_read_base, self.body))

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

    def describe(self, node: ast.expr) -> str:
        """The source of an expression in one short line, for a refusal."""
        code = ' '.join(self.code(node).split())
        return code if len(code) <= 40 else code[:37] + '...'

    def touches(self, name: str) -> list[Touch]:
        """Lists the touches of a name at module level, in order of execution."""
        if name not in self._touches:
            found = self._touches[name] = []
            for index, statement in enumerate(self.body):
                # most statements do not name it, and walking them would take long
                if name in self.code(statement) and not _is_read_base(statement):
                    found += _read_touches(statement, name, index)
        return self._touches[name]


def split_lines(text: str) -> list[str]:
    """Splits at newlines alone, unlike ``str.splitlines``, and keeps them."""
    return _LINE.findall(text)


def _is_read_base(statement: ast.stmt) -> bool:
    """Says whether it is ``with read_base():``, whose names are inherited."""
    return isinstance(statement, ast.With) and (
        ast.unparse(statement.items[0].context_expr) == 'read_base()'
    )


def _read_touches(statement: ast.stmt, name: str, index: int) -> list[Touch]:
    """Lists what one statement does with a name, its reads first, as they run first."""
    nodes = list(ast.walk(statement))
    parents = {child: node for node in nodes for child in ast.iter_child_nodes(node)}
    conditional = not isinstance(statement, _UNCONDITIONAL)
    found = []
    for node in nodes:
        names = [getattr(node, 'name', None)]  # of functions, except, match
        if isinstance(node, ast.alias):
            names = [(node.asname or node.name).partition('.')[0]]
        inherited = parse_chain(node) == ('_base_', name)
        how: How = 'lose'
        place: Any = node
        path: tuple[str, ...] = ()
        owner: Any = statement
        if inherited or (isinstance(node, ast.Name) and node.id == name):
            place, path = _climb(node, parents)
            how, path, owner = _classify(place, path, parents.get(place), inherited)
        elif name not in names:
            continue
        if how in ('bind', 'lose') and _is_inner(place, parents):
            how = 'read'  # what a function assigns is its own
        found.append(Touch(how, path, index, owner, inherited, conditional))
    return sorted(found, key=lambda touch: touch.how != 'read')


def _climb(node: Any, parents: _Parents) -> tuple[Any, tuple[str, ...]]:
    """Follows ``x.a['b']`` upwards from ``x``."""
    depth = len(parse_chain(node))
    while getattr(parents.get(node), 'value', None) is node and isinstance(
        parents[node], (ast.Attribute, ast.Subscript)
    ):
        node = parents[node]
    return node, parse_chain(node)[depth:]


def _classify(
    place: Any, path: tuple[str, ...], parent: Any, inherited: bool
) -> tuple[How, tuple[str, ...], Any]:
    """Says how a place is used, which keys that concerns, and by which node."""
    if isinstance(place.ctx, ast.Del):
        return 'change' if path or inherited else 'lose', path, parent
    if isinstance(place.ctx, ast.Store):
        if isinstance(parent, ast.comprehension):
            return 'read', path, place
        if isinstance(parent, ast.withitem):
            return 'lose', path, parent.context_expr
        only = isinstance(parent, ast.Assign) and len(parent.targets) == 1
        if not only and not isinstance(parent, ast.AnnAssign):
            return 'change', path, place
        if parent.value is None:
            return 'read', path, place
        return 'write' if path else 'bind', path, parent
    if not isinstance(parent, ast.Call) or parent.func is not place or not path:
        return 'read', path, place
    *keys, method = path
    key = parse_string(parent.args[0]) if parent.args else None
    if method in _OF_ONE_KEY and key is not None:
        keys.append(key)
    how: How = 'read' if method in _READERS else 'change'
    return 'update' if method == 'update' else how, tuple(keys), parent


def _is_inner(node: Any, parents: _Parents) -> bool:
    while node in parents:
        node = parents[node]
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            return True
    return False


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


def parse_template(node: ast.expr) -> ast.expr | None:
    """Returns the ``_base_.x`` in ``{{_base_.x}}``, ``None`` for anything else."""
    for _ in range(2):
        if not isinstance(node, ast.Set) or len(node.elts) != 1:
            return None
        node = node.elts[0]
    return node if parse_chain(node)[0] == '_base_' else None


def is_display(node: ast.AST | None) -> bool:
    """Says whether it is ``dict(...)`` or ``{...}``."""
    if isinstance(node, ast.Call):
        return parse_chain(node.func) == ('dict',)
    return isinstance(node, ast.Dict)
