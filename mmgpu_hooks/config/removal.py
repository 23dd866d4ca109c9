"""Removes GPUEfficiencyHook from a config's text, however it is written there; no I/O.

An entry goes with its comma and the comment on its line, a statement with its lines.
What else is there stays, comments on lines of their own included.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from mmgpu_hooks.config.edits import Layout, Replacement, append, is_broken, split_gap
from mmgpu_hooks.config.hook_arguments import is_our_hook
from mmgpu_hooks.config.loading import Container, FlatConfig, KeyPath
from mmgpu_hooks.config.syntax import (
    Display,
    Module,
    is_display,
    locate_setting,
    parse_chain,
    parse_entries,
    parse_string,
)

_MOST = 20
"""Maximum number of config statements that are removed for one hook."""


@dataclass(frozen=True)
class _Spelled:
    """Place of a hook in a config's text: entry of a dict or list, or a statement."""

    statement: ast.stmt
    display: Display | ast.List | None = None
    index: int = 0

    def remove(self, module: Module) -> Replacement | None:
        """Makes the edit that deletes the hook from a config; ``None``: impossible."""
        if self.display is None:
            return _remove_statement(module, self.statement)
        if len(parse_entries(self.display)) == 1:
            # `x.update()` and `x += []` do nothing
            is_idle = not isinstance(self.statement, (ast.Assign, ast.AnnAssign))
            if is_idle or self._is_appended(module):
                return _remove_statement(module, self.statement)
        return _remove_entry(module, self.display, self.index)

    def _is_appended(self, module: Module) -> bool:
        """True if the statement looks appended by ``mmgpu enable``."""
        value, line = getattr(self.statement, 'value', None), self.statement.lineno
        return (
            value is self.display
            and is_display(value)
            and self.statement is module.body[-1]
            and line > 1
            and not module.lines[line - 2].strip()
        )


def remove_hooks(text: str, config: FlatConfig, places: Iterable[KeyPath]) -> str:
    """Returns a config's text without the hooks at the given key paths.

    Args:
        text: Source of the config.
        config: As loaded.
        places: Of the hook in it, such as ``('default_hooks', 'gpu_efficiency')``.
    """
    # the last one of a list first, so that the others keep their index
    for place in reversed(list(places)):
        for _ in range(_MOST):
            module = Module(text)
            found = _locate(module, config, place)
            removal = None if found is None else found.remove(module)
            if removal is None:
                break
            text = removal.apply(text)
            if place[0] == 'custom_hooks':
                break
    return text


def append_pops(text: str, form: str, places: Iterable[KeyPath]) -> str:
    """Appends ``.pop(...)`` statements to a config's text, to remove inherited hooks.

    Args:
        text: Source of the config.
        form: The dict, with ``{}`` for its name.
        places: Of the hook.
    """
    module = Module(text)
    calls = [f'{form.format(root)}.pop({key!r})' for root, key in places]
    return append(text, module.newline, module.newline.join(calls)).apply(text)


def remove_from_config(config: FlatConfig, places: Iterable[KeyPath]) -> FlatConfig:
    """Returns a loaded config's values without the hooks at the given key paths."""
    gone = set(places)
    listed = sorted(int(key) for root, key in gone if root == 'custom_hooks')
    found: FlatConfig = {}
    for path, value in config.items():
        if path[:2] in gone:
            continue
        if path[:1] != ('custom_hooks',) or not listed:
            found[path] = value
        elif isinstance(value, Container) and len(path) == 1:
            found[path] = Container(value.kind, value.size - len(listed))
        else:
            index = int(path[1])
            index -= sum(ours < index for ours in listed)
            key = (path[0], str(index), *path[2:])
            found[key] = value
    return found


def list_bases(module: Module) -> str:
    """Returns the names in a config's ``_base_``, joined by commas; may be empty."""
    for statement in module.body:
        if isinstance(statement, ast.Assign) and (
            parse_chain(statement.targets[0]) == ('_base_',)
        ):
            return ', '.join(
                node.value
                for node in ast.walk(statement.value)
                if isinstance(node, ast.Constant) and isinstance(node.value, str)
            )
    return ''


def _locate(module: Module, config: FlatConfig, place: KeyPath) -> _Spelled | None:
    if place[0] == 'custom_hooks':
        held = config.get(('custom_hooks',))
        size = held.size if isinstance(held, Container) else -1
        return _locate_in_list(module, int(place[1]), size)
    found = locate_setting(module, place)
    if found.kind != 'value':
        return None
    for node in ast.walk(found.statement):
        if isinstance(node, (ast.Call, ast.Dict)):
            for index, entry in enumerate(parse_entries(node)):
                if entry.value is found.node and entry.key == place[-1]:
                    return _Spelled(found.statement, node, index)
    return _Spelled(found.statement)


def _locate_in_list(module: Module, index: int, size: int) -> _Spelled | None:
    """Finds a hook's place in the last statement that sets ``custom_hooks``."""
    for statement in reversed(module.body):
        target = _target_of(statement)
        if target is None or parse_chain(target)[-1:] != ('custom_hooks',):
            continue
        value: Any = getattr(statement, 'value', None)
        if isinstance(value, ast.Call) and any(map(_is_ours, value.args)):
            # custom_hooks.append(dict(...))
            return _Spelled(statement)
        for node in ast.walk(value):
            if not isinstance(node, ast.List):
                continue
            ours = [at for at, item in enumerate(node.elts) if _is_ours(item)]
            if not ours and node is value and len(node.elts) == size:
                # a variable, perhaps; the proof is the judge
                ours = [index]
            if ours:
                return _Spelled(statement, node, ours[-1])
    return None


def _target_of(statement: ast.stmt) -> ast.expr | None:
    """Returns the variable that a statement assigns, extends or calls a method of."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        return statement.targets[0]
    if isinstance(statement, (ast.AnnAssign, ast.AugAssign)):
        return statement.target
    call = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
        return call.func.value
    return None


def _is_ours(node: ast.expr) -> bool:
    """True if an expression is ``dict(type=...)`` of GPUEfficiencyHook."""
    if not isinstance(node, (ast.Call, ast.Dict)) or not is_display(node):
        return False
    types = [entry.value for entry in parse_entries(node) if entry.key == 'type']
    return any(
        is_our_hook(parse_string(name) or parse_chain(name)[-1]) for name in types
    )


def _remove_entry(
    module: Module, display: Display | ast.List, index: int
) -> Replacement:
    layout = Layout(module, display)
    slot = layout.slots[index]
    ahead = layout.slots[index - 1] if index else None
    lead = layout.lead if ahead is None else ahead.gap
    start = layout.start if ahead is None else ahead.tail
    stop = slot.tail + len(slot.gap)
    rest = split_gap(slot.gap)[1]
    if len(layout.slots) == 1 and '#' not in lead + rest:
        return Replacement(layout.start, layout.stop, '')
    if ahead is None and not is_broken(lead):
        # what follows takes its place behind the bracket
        return Replacement(start, stop, lead + (rest if '#' in rest else ''))
    own_line = lead
    if is_broken(lead):
        own_line = lead[max(lead.rfind('\n'), lead.rfind('\r')) :]
        at = len(lead) - len(own_line)
        own_line = lead[at - 1 :] if lead[at - 1 : at + 1] == '\r\n' else own_line
    kept = lead[: len(lead) - len(own_line)]
    if '#' in kept and not is_broken(rest):
        # else the comment would swallow the bracket
        kept = lead
    if ahead is not None and ahead.comma is not None and slot.comma is None:
        start = ahead.comma
    return Replacement(start, stop, kept + rest)


def _remove_statement(module: Module, statement: ast.stmt) -> Replacement | None:
    first, last = statement.lineno - 1, statement.end_lineno
    assert last is not None
    start, end = module.span(statement)
    begin, stop = module.offset(first + 1, 0), sum(map(len, module.lines[:last]))
    behind = module.text[end:stop].strip()
    if start != begin or (behind and not behind.startswith('#')):
        return None
    if not module.text[stop:].strip() and first:
        if not module.lines[first - 1].strip():
            begin = module.offset(first, 0)
        if not module.lines[last - 1].endswith(('\n', '\r')):
            # the text before it ended without one, too
            begin -= len(module.newline) if begin else 0
    return Replacement(begin, stop, '')
