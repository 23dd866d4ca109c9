"""Reads single LibCST expressions: chains, strings, literals. Pure."""

from __future__ import annotations

import ast
import functools

import libcst as cst

UNKNOWN = '?'
"""Stands for a subscript that is neither a string nor an integer literal."""


def parse_chain(node: cst.BaseExpression) -> tuple[str, ...]:
    """Reads ``a.b['c'][0]`` as ``('a', 'b', 'c', '0')``."""
    if isinstance(node, cst.Name):
        return (node.value,)
    if isinstance(node, cst.Attribute):
        return (*parse_chain(node.value), node.attr.value)
    if isinstance(node, cst.Subscript):
        return (*parse_chain(node.value), _parse_index(node))
    return (UNKNOWN,)


def _parse_index(node: cst.Subscript) -> str:
    index = node.slice[0].slice
    if len(node.slice) != 1 or not isinstance(index, cst.Index):
        return UNKNOWN
    if isinstance(index.value, cst.Integer):
        return index.value.value
    key = parse_string(index.value)
    return UNKNOWN if key is None else key


def parse_string(node: cst.BaseExpression) -> str | None:
    """Returns the value of a string literal, ``None`` for anything else."""
    if isinstance(node, (cst.SimpleString, cst.ConcatenatedString)):
        value = node.evaluated_value
        return value if isinstance(value, str) else None
    return None


def parse_literal(node: cst.BaseExpression) -> tuple[type, object] | None:
    """Reads a literal as its type and value, ``None`` for any other expression."""
    if is_template(node):
        return None
    try:
        value = ast.literal_eval(render_code(node).strip())
    except (ValueError, SyntaxError, TypeError):
        return None
    return type(value), value


def is_template(node: cst.BaseExpression) -> bool:
    """Says whether it is ``{{_base_.x}}`` or ``{{'$X:1'}}``, filled in as text."""
    inner = _parse_inner(node)
    return inner is not None and (
        parse_chain(inner)[0] == '_base_' or (parse_string(inner) or '')[:1] == '$'
    )


def parse_template(node: cst.BaseExpression) -> cst.BaseExpression | None:
    """Returns the ``_base_.x`` in ``{{_base_.x}}``, ``None`` for anything else."""
    inner = _parse_inner(node)
    return inner if inner is not None and parse_chain(inner)[0] == '_base_' else None


def _parse_inner(node: cst.BaseExpression) -> cst.BaseExpression | None:
    for _ in range(2):
        if not isinstance(node, cst.Set) or len(node.elements) != 1:
            return None
        node = node.elements[0].value
    return node


def is_display(node: cst.BaseExpression) -> bool:
    """Says whether it is ``dict(...)`` or ``{...}``."""
    if isinstance(node, cst.Call):
        return parse_chain(node.func) == ('dict',)
    return isinstance(node, cst.Dict)


def render_code(node: cst.CSTNode) -> str:
    """Returns the source of a node."""
    return cst.Module([]).code_for_node(node)


@functools.lru_cache(maxsize=512)
def _render_line(node: cst.CSTNode, newline: str, indent: str) -> str:
    # Trees are never changed, and an edited one shares all statements but one.
    module = cst.Module([], default_newline=newline, default_indent=indent)
    return module.code_for_node(node)


def render_statement(module: cst.Module, node: cst.CSTNode) -> str:
    """Returns the source of a statement of a module, rendered once."""
    return _render_line(node, module.default_newline, module.default_indent)


def render_module(module: cst.Module) -> str:
    """Returns the source of a module, from its statements rendered before."""
    if not module.has_trailing_newline or not module.body:
        return module.code
    nodes = (*module.header, *module.body, *module.footer)
    return ''.join(render_statement(module, node) for node in nodes)


def render_found(node: cst.BaseExpression) -> str:
    """Says in a few words what an expression is, for a refusal."""
    code = ' '.join(render_code(node).split())
    code = code if len(code) <= 40 else code[:37] + '...'
    if isinstance(node, cst.Name) and code not in ('None', 'True', 'False'):
        return f'the variable {code}'
    if isinstance(node, cst.Call):
        return f'the function call {code}'
    if isinstance(node, (cst.IfExp, cst.BooleanOperation, cst.Comparison)):
        return f'the condition {code}'
    if isinstance(node, (cst.BinaryOperation, cst.UnaryOperation)):
        return f'the computed value {code}'
    return code
