"""Reads from a parsed config which statements touch a dataloader. Pure."""

# ruff: noqa: N802 - LibCST finds visit_<NodeClass> methods by these names

from __future__ import annotations

from collections.abc import Set as AbstractSet

import libcst as cst
from libcst.metadata import ExpressionContext, ExpressionContextProvider

UNKNOWN = '?'
"""Stands for a subscript that is not a string literal."""

_READERS = frozenset(('get', 'keys', 'values', 'items', 'copy', 'to_dict'))


class Survey(cst.CSTVisitor):
    """Collects whatever binds or changes the loader at module level."""

    METADATA_DEPENDENCIES = (ExpressionContextProvider,)

    def __init__(self, loader: str, keys: AbstractSet[str]) -> None:
        super().__init__()
        self.loader = loader
        self.keys = keys
        self.lazy = False
        self.bindings: list[cst.CSTNode] = []
        self.mutations: list[tuple[cst.CSTNode, str, str]] = []

    def visit_Name(self, node: cst.Name) -> None:
        if node.value == self.loader and self._is_target(node):
            self.bindings.append(node)

    def visit_Attribute(self, node: cst.Attribute) -> None:
        self._note_target(node)

    def visit_Subscript(self, node: cst.Subscript) -> None:
        self._note_target(node)

    def visit_With(self, node: cst.With) -> bool:
        context = node.items[0].item
        if isinstance(context, cst.Call) and parse_chain(context.func) == (
            'read_base',
        ):
            # The names imported here are the base's: inherited, not assigned.
            self.lazy = True
            return False
        return True

    def visit_ImportAlias(self, node: cst.ImportAlias) -> bool:
        if (node.evaluated_alias or node.evaluated_name) == self.loader:
            self.bindings.append(node)
        return False

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        return self._skip_scope(node, node.name)

    def visit_ClassDef(self, node: cst.ClassDef) -> bool:
        return self._skip_scope(node, node.name)

    def visit_CompFor(self, node: cst.CompFor) -> bool:
        return False

    def visit_Lambda(self, node: cst.Lambda) -> bool:
        return False

    def visit_Call(self, node: cst.Call) -> None:
        chain = parse_chain(node.func)
        if len(chain) != 2 or chain[0] != self.loader or chain[1] in _READERS:
            return
        named = {arg.keyword.value for arg in node.args if arg.keyword}
        for arg in node.args:
            named.update(_literal_keys(arg.value))
        method = f'{self.loader}.{chain[1]}(...)'
        if chain[1] in ('clear', 'popitem') or any(arg.star for arg in node.args):
            self.mutations.append((node, min(self.keys), method))
        for key in sorted(named & self.keys):
            self.mutations.append((node, key, method))

    def _skip_scope(self, node: cst.CSTNode, name: cst.Name) -> bool:
        if name.value == self.loader:
            self.bindings.append(node)
        return False

    def _is_target(self, node: cst.CSTNode) -> bool:
        context = self.get_metadata(ExpressionContextProvider, node, None)
        return context in (ExpressionContext.STORE, ExpressionContext.DEL)

    def _note_target(self, node: cst.BaseExpression) -> None:
        chain = parse_chain(node)
        if len(chain) < 2 or chain[0] != self.loader or not self._is_target(node):
            return
        if chain[1] in self.keys or chain[1] == UNKNOWN:
            key = min(self.keys) if chain[1] == UNKNOWN else chain[1]
            self.mutations.append((node, key, cst.Module([]).code_for_node(node)))


def parse_chain(node: cst.BaseExpression) -> tuple[str, ...]:
    """Reads ``a.b['c']`` as ``('a', 'b', 'c')``, a leading ``_base_`` dropped."""
    if isinstance(node, cst.Name):
        return () if node.value == '_base_' else (node.value,)
    if isinstance(node, cst.Attribute):
        return (*parse_chain(node.value), node.attr.value)
    if isinstance(node, cst.Subscript):
        index = node.slice[0].slice
        literal = index.value if isinstance(index, cst.Index) else None
        key = parse_string(literal) if literal is not None else None
        return (*parse_chain(node.value), UNKNOWN if key is None else key)
    return (UNKNOWN,)


def _literal_keys(node: cst.BaseExpression) -> list[str]:
    """Names the keys in a ``dict(...)``, a ``{...}`` or a string argument."""
    if isinstance(node, cst.Dict):
        found = [
            parse_string(element.key)
            for element in node.elements
            if isinstance(element, cst.DictElement)
        ]
        return [key for key in found if key is not None]
    if isinstance(node, cst.Call):
        return [arg.keyword.value for arg in node.args if arg.keyword]
    text = parse_string(node)
    return [] if text is None else [text]


def parse_string(node: cst.BaseExpression) -> str | None:
    """Returns the value of a string literal, ``None`` for anything else."""
    if isinstance(node, (cst.SimpleString, cst.ConcatenatedString)):
        value = node.evaluated_value
        return value if isinstance(value, str) else None
    return None


def render_found(node: cst.BaseExpression) -> str:
    """Says in a few words what an expression is, for a refusal."""
    code = ' '.join(cst.Module([]).code_for_node(node).split())
    code = code if len(code) <= 40 else code[:37] + '...'
    if isinstance(node, cst.Name) and code not in ('None', 'True', 'False'):
        return f'the variable {code}'
    if isinstance(node, cst.Call):
        return f'the call {code}'
    if isinstance(node, (cst.BinaryOperation, cst.BooleanOperation)):
        return f'the computed value {code}'
    return f'{code}'
