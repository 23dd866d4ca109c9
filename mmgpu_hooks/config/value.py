"""Decides how the value of one setting may be replaced. Pure."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import libcst as cst

from mmgpu_hooks.config.expression import (
    is_display,
    is_template,
    parse_chain,
    parse_literal,
    parse_string,
    render_code,
    render_found,
)
from mmgpu_hooks.config.locate import line_of
from mmgpu_hooks.config.outcome import RefusedError
from mmgpu_hooks.config.statements import Touch, parse_touches


@dataclass(frozen=True)
class Place:
    """The expression to replace so that a setting changes."""

    index: int
    """Index of its statement in the module's body."""

    node: cst.BaseExpression

    variable: str | None = None
    """The variable that is changed instead, as nothing else uses it."""

    note: str | None = None
    """What the reader should know."""


def locate_value(
    module: cst.Module,
    index: int,
    node: cst.BaseExpression,
    setting: str,
    free: AbstractSet[str] | None = None,
) -> Place:
    """Finds what to replace for a setting whose value is ``node``.

    A literal is replaced where it stands. So is a variable or arithmetic, since
    whatever else uses the variable must not change; only one that nothing else
    uses is changed where it is assigned.

    Args:
        module: The parsed config.
        index: Index of the statement in its body.
        node: The value.
        setting: Dotted key, for refusals.
        free: The variables that may be changed. Default: all that this one value uses.

    Raises:
        RefusedError: If the value depends on a condition or a function.
    """
    literal = parse_literal(node)
    if is_display(node) or isinstance(node, (cst.List, cst.Tuple)):
        raise RefusedError(
            f'expected a single value in {setting}, found a dict or list; '
            'change it by hand',
            line_of(module, node),
        )
    if literal is not None:
        return Place(index, node)
    names = _parse_names(node)
    if names is None:
        raise RefusedError(
            f'expected {setting} as a literal or computed from variables, found '
            f'{render_found(node)}; write the value there as a literal, or change it '
            'by hand',
            line_of(module, node),
        )
    touches = {name: parse_touches(module, name) for name in names}
    for name, found in touches.items():
        _refuse_conditional(module, name, found, setting)
    if isinstance(node, cst.Name):
        definition = _locate_definition(touches[node.value])
        if definition is not None and (free is None or node.value in free):
            return definition
    code = ' '.join(render_code(node).split())
    note = f'{setting} was {code} and no longer follows it'
    users = [name for name in names if touches[name]]
    if users:
        note += f'; {" and ".join(users)} {"stay" if users[1:] else "stays"} as before'
    return Place(index, node, note=note + '.')


def _locate_definition(touches: tuple[Touch, ...]) -> Place | None:
    writers = [touch for touch in touches if touch.how != 'read']
    readers = [touch for touch in touches if touch.how == 'read']
    if len(writers) != 1 or len(readers) != 1 or writers[0].how != 'bind':
        return None
    writer = writers[0]
    literal = None if writer.path or writer.inherited else parse_literal(writer.value)
    if literal is None or issubclass(literal[0], (dict, list, tuple, set)):
        return None
    assert isinstance(writer.node, (cst.Assign, cst.AnnAssign))
    target = (
        writer.node.target
        if isinstance(writer.node, cst.AnnAssign)
        else writer.node.targets[0].target
    )
    assert isinstance(target, cst.Name)
    return Place(writer.index, writer.value, target.value)


def _refuse_conditional(
    module: cst.Module, name: str, touches: tuple[Touch, ...], setting: str
) -> None:
    for touch in touches:
        if touch.conditional and touch.how != 'read':
            raise RefusedError(
                f'expected {setting} to be the same in every run, found that its '
                f'variable {name} is set below a condition, loop or the like; '
                'change it by hand',
                line_of(module, touch.node),
            )


def _parse_names(node: cst.BaseExpression) -> list[str] | None:
    """Lists the names in a value that only reads them, ``None`` for any other."""
    if isinstance(node, (cst.Integer, cst.Float)) or is_template(node):
        return []
    if isinstance(node, cst.BinaryOperation):
        left, right = _parse_names(node.left), _parse_names(node.right)
        if left is None or right is None:
            return None
        return [*left, *(name for name in right if name not in left)]
    if isinstance(node, cst.UnaryOperation):
        return _parse_names(node.expression)
    if isinstance(node, (cst.Name, cst.Attribute, cst.Subscript)):
        chain = parse_chain(node)
        if '?' in chain:
            return None
        return [] if chain[0] == '_base_' else [chain[0]]
    return [] if parse_string(node) is not None else None
