"""Finds where a config file spells a dataloader, or says why that is unsafe.

Pure: text in, a :class:`Site` out. Every spelling that is not understood is
refused with its line, so supporting one more means one more branch here.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import cast

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

from mmgpu_hooks.configfile.display import Display
from mmgpu_hooks.configfile.outcome import RefusedError
from mmgpu_hooks.configfile.survey import Survey, parse_chain, render_found

_ADVICE = 'write it as a literal there, or change it by hand'


@dataclass(frozen=True)
class Site:
    """Where a loader is spelled in a parsed file."""

    module: cst.Module
    """The parsed file that ``display`` is a node of."""

    display: Display | None
    """The dict assigned to the loader, ``None`` if the value is inherited."""

    lines: Mapping[cst.CSTNode, CodeRange]
    """Position of every node."""

    lazy: bool
    """Whether bases are imported in ``with read_base():``."""

    def line(self, node: cst.CSTNode) -> int:
        """Returns the first line of a node, from 1."""
        return self.lines[node].start.line


def locate_loader(text: str, loader: str, keys: AbstractSet[str]) -> Site:
    """Finds the one top-level assignment of a loader.

    Args:
        text: Source of the config.
        loader: Name of the loader, such as ``train_dataloader``.
        keys: The keys that are to change.

    Returns:
        Its place; with ``display=None`` when the file does not assign it.

    Raises:
        RefusedError: If the file spells it in a way that cannot be edited safely.
    """
    try:
        module = cst.parse_module(text)
    except cst.ParserSyntaxError as error:
        raise RefusedError(
            'expected a Python config, LibCST found a syntax error here; mend it first',
            error.raw_line,
        ) from error
    # The tree was parsed a line above: no node is shared, no copy is needed.
    wrapper = MetadataWrapper(module, unsafe_skip_copy=True)
    survey = Survey(loader, keys)
    wrapper.visit(survey)
    positions = cast(
        'Mapping[cst.CSTNode, CodeRange]', wrapper.resolve(PositionProvider)
    )
    site = Site(module, None, positions, survey.lazy)
    lines = sorted({site.line(node) for node in survey.bindings})
    if len(survey.bindings) > 1:
        raise RefusedError(
            f'expected {loader} to be assigned once, found it on lines '
            f'{", ".join(map(str, lines))}; keep one assignment',
            lines[0],
        )
    update = _locate_update(module, loader, survey)
    if update is not None:
        return Site(module, update, positions, survey.lazy)
    for node, key, how in survey.mutations:
        raise RefusedError(
            f'expected {loader}.{key} as a literal, found it set through {how}; '
            + _ADVICE,
            site.line(node),
        )
    if not survey.bindings:
        return site
    display = _locate_display(module, loader, lines[0])
    return Site(module, display, positions, survey.lazy)


def _locate_update(module: cst.Module, loader: str, survey: Survey) -> cst.Call | None:
    """Finds the one ``loader.update(key=...)`` that overrides an imported loader."""
    nodes = {node for node, _, _ in survey.mutations}
    if not survey.lazy or survey.bindings or len(nodes) != 1:
        return None
    for statement in module.body:
        if isinstance(statement, cst.SimpleStatementLine):
            for small in statement.body:
                call = small.value if isinstance(small, cst.Expr) else None
                if isinstance(call, cst.Call) and call in nodes:
                    plain = all(arg.keyword for arg in call.args)
                    chain = parse_chain(call.func)
                    return call if plain and chain == (loader, 'update') else None
    return None


def _locate_display(module: cst.Module, loader: str, line: int) -> Display:
    for statement in module.body:
        if not isinstance(statement, cst.SimpleStatementLine):
            continue
        for small in statement.body:
            if not isinstance(small, cst.Assign) or len(small.targets) != 1:
                continue
            target = small.targets[0].target
            if not isinstance(target, cst.Name) or target.value != loader:
                continue
            value = small.value
            if isinstance(value, cst.Dict):
                return value
            if isinstance(value, cst.Call) and parse_chain(value.func) == ('dict',):
                return value
            raise RefusedError(
                f'expected {loader} = dict(...), found {render_found(value)}; '
                + _ADVICE,
                line,
            )
    raise RefusedError(
        f'expected one plain top-level {loader} = dict(...), found it bound in '
        'another statement (a condition, a loop, a tuple, an annotation or the '
        'like); write it as a plain assignment',
        line,
    )
