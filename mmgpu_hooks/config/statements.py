"""Reads from a parsed config which statements touch a name, and how. Pure.

One :class:`Touch` per place, in the order in which Python runs them. What is not
understood is still a touch: that way nothing that may matter goes unseen.
"""

# ruff: noqa: N802 - LibCST finds visit_<NodeClass> methods by these names

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

import libcst as cst

from mmgpu_hooks.config.expression import (
    UNKNOWN,
    parse_chain,
    parse_string,
    render_statement,
)

How = Literal['bind', 'write', 'update', 'change', 'lose', 'read']

_READERS = frozenset(('get', 'keys', 'values', 'items', 'copy', 'to_dict'))
_OF_ONE_KEY = frozenset(('get', 'pop', 'setdefault'))


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

    node: cst.CSTNode
    """The assignment, the call, or the expression."""

    inherited: bool = False
    """Whether it is about ``_base_.x``, the value of the bases."""

    conditional: bool = False
    """Whether it stands below an ``if``, ``for``, ``while``, ``try`` or ``with``."""

    @property
    def value(self) -> cst.BaseExpression:
        """Returns the expression that a ``bind`` or ``write`` assigns."""
        assert isinstance(self.node, (cst.Assign, cst.AnnAssign))
        assert self.node.value is not None
        return self.node.value

    def crosses(self, path: tuple[str, ...]) -> bool:
        """Says whether it may concern the value at a path."""
        pairs = zip(self.path, path)
        return all(a == b or UNKNOWN in (a, b) for a, b in pairs)


@functools.lru_cache(maxsize=64)
def parse_touches(module: cst.Module, name: str) -> tuple[Touch, ...]:
    """Lists the touches of a name at module level, in order of execution."""
    touches: list[Touch] = []
    for index, statement in enumerate(module.body):
        # Most statements do not name it, and walking them would take long.
        code = render_statement(module, statement)
        if is_read_base(statement) or name not in code:
            continue
        reader = _Reader(name, index, not isinstance(statement, _PLAIN))
        statement.visit(reader)
        touches += reader.touches
    return tuple(touches)


_PLAIN = (cst.SimpleStatementLine, cst.FunctionDef, cst.ClassDef)


def is_read_base(statement: cst.CSTNode) -> bool:
    """Says whether it is ``with read_base():``, whose names are inherited."""
    if not isinstance(statement, cst.With):
        return False
    context = statement.items[0].item
    return isinstance(context, cst.Call) and parse_chain(context.func) == ('read_base',)


class _Reader(cst.CSTVisitor):
    def __init__(self, name: str, index: int, conditional: bool) -> None:
        super().__init__()
        self.name = name
        self.index = index
        self.conditional = conditional
        self.scopes = 0
        self.touches: list[Touch] = []

    def _path(self, node: cst.BaseExpression) -> tuple[tuple[str, ...], bool] | None:
        chain = parse_chain(node)
        inherited = chain[0] == '_base_'
        chain = chain[1:] if inherited else chain
        return (chain[1:], inherited) if chain[:1] == (self.name,) else None

    def _note(self, how: How, node: cst.CSTNode, place: cst.BaseExpression) -> bool:
        found = self._path(place)
        if found is None:
            return False
        # What a function assigns is its own.
        how = 'read' if self.scopes and how in ('bind', 'lose') else how
        path, inherited = found
        how = 'write' if how == 'bind' and path else how
        touch = Touch(how, path, self.index, node, inherited, self.conditional)
        self.touches.append(touch)
        return True

    def visit_Assign(self, node: cst.Assign) -> bool:
        node.value.visit(self)
        alone = len(node.targets) == 1
        for target in node.targets:
            if alone and self._note('bind', node, target.target):
                return False
            self._store(target.target)
        return False

    def visit_AnnAssign(self, node: cst.AnnAssign) -> bool:
        if node.value is not None:
            node.value.visit(self)
            if not self._note('bind', node, node.target):
                node.target.visit(self)
        return False

    def visit_AugAssign(self, node: cst.AugAssign) -> bool:
        node.value.visit(self)
        self._store(node.target)
        return False

    def _store(self, target: cst.BaseExpression) -> None:
        if isinstance(target, (cst.Tuple, cst.List)):
            for element in target.elements:
                self._store(element.value)
        elif not self._note('change', target, target):
            target.visit(self)

    def visit_For(self, node: cst.For) -> None:
        self._store(node.target)

    def visit_NamedExpr(self, node: cst.NamedExpr) -> None:
        self._store(node.target)

    def visit_Del(self, node: cst.Del) -> bool:
        target = node.target
        places = (
            [element.value for element in target.elements]
            if isinstance(target, cst.Tuple)
            else [target]
        )
        for place in places:
            whole = self._path(place) == ((), False)
            self._note('lose' if whole else 'change', node, place)
        return False

    def visit_AsName(self, node: cst.AsName) -> bool:
        self._note('lose', node, node.name)
        return False

    def visit_ImportAlias(self, node: cst.ImportAlias) -> bool:
        if (node.evaluated_alias or node.evaluated_name) == self.name:
            self._note('lose', node, cst.Name(self.name))
        return False

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self._note('lose', node, node.name)
        self.scopes += 1

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:
        self.scopes -= 1

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        self._note('lose', node, node.name)
        self.scopes += 1

    def leave_ClassDef(self, original_node: cst.ClassDef) -> None:
        self.scopes -= 1

    def visit_Call(self, node: cst.Call) -> bool:
        for arg in node.args:
            arg.value.visit(self)
        func = node.func
        if isinstance(func, cst.Attribute) and self._path(func.value) is not None:
            self._note_method(node, func)
        else:
            func.visit(self)
        return False

    def _note_method(self, call: cst.Call, func: cst.Attribute) -> None:
        method, place = func.attr.value, func.value
        key = parse_string(call.args[0].value) if call.args else None
        if method in _OF_ONE_KEY and key is not None:
            place = cst.Subscript(
                place, [cst.SubscriptElement(cst.Index(cst.SimpleString(repr(key))))]
            )
        how: How = 'change'
        if method in _READERS:
            how = 'read'
        elif method == 'update':
            how = 'update'
        self._note(how, call, place)

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        if not self._note('read', node, node):
            node.value.visit(self)
        return False

    def visit_Subscript(self, node: cst.Subscript) -> bool:
        for element in node.slice:
            element.slice.visit(self)
        if not self._note('read', node, node):
            node.value.visit(self)
        return False

    def visit_Arg(self, node: cst.Arg) -> bool:
        # The keyword in dict(name=...) is no use of the name.
        node.value.visit(self)
        return False

    def visit_Name(self, node: cst.Name) -> None:
        self._note('read', node, node)
