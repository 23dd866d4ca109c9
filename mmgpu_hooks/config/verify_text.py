"""Proves that a step of an edit changed what was asked in the text. Pure.

It reads both versions with the standard library's ``ast``, so it shares no code
with the edit that it checks.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Union

from mmgpu_hooks.config.outcome import REMOVE, Setting

Values = Mapping[tuple[str, ...], Setting]

_Keys = tuple[Union[str, None], ...]
_Entry = tuple[Union[str, None], ast.expr]


class _Text:
    """A config's bytes and its statements."""

    def __init__(self, text: str) -> None:
        self.raw = text.encode()
        self.starts = [0]
        for line in re.findall(r'[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+\Z', text):
            self.starts.append(self.starts[-1] + len(line.encode()))
        self.statements = ast.parse(text).body

    def span(self, node: ast.stmt | ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self.starts[node.lineno - 1] + node.col_offset
        return start, self.starts[node.end_lineno - 1] + node.end_col_offset

    def code(self, node: ast.stmt | ast.expr) -> bytes:
        return self.raw[slice(*self.span(node))]

    def around(self, node: ast.stmt | ast.expr) -> tuple[bytes, bytes]:
        start, stop = self.span(node)
        return self.raw[:start], self.raw[stop:]


def verify_step(
    before: str, after: str, root: str, values: Values, variable: str | None = None
) -> str | None:
    """Checks that one statement changed, was added or taken out, and only as asked.

    Args:
        before: The text before the step.
        after: The text after it.
        root: The name whose settings may differ.
        values: Its settings by the keys below it.
        variable: The variable that may differ instead.

    Returns:
        ``None`` if every other byte is the same, else what is wrong.
    """
    old, new = _Text(before), _Text(after)
    old_codes = [old.code(node) for node in old.statements]
    new_codes = [new.code(node) for node in new.statements]
    head = _count_same(old_codes, new_codes)
    tail = _count_same(old_codes[head:][::-1], new_codes[head:][::-1])
    left = old.statements[head : len(old_codes) - tail]
    right = new.statements[head : len(new_codes) - tail]
    if len(left) == len(right) == 1 and len(values) == 1:
        return _verify_changed(old, new, left[0], right[0], root, values, variable)
    if not left and len(right) == 1:
        good = _is_cut(new, right[0], old) and _is_override(right[0], root, values)
        return None if good else f'expected one {root} statement to be added'
    if not right and len(left) == 1 and REMOVE in values.values():
        keys = {path[0] for path in values}
        good = _is_cut(old, left[0], new) and _is_only(left[0], root, keys)
        return None if good else f'expected only the {root} asked for to be taken out'
    return f'expected one statement of {root} to change, found more'


def _count_same(left: Sequence[bytes], right: Sequence[bytes]) -> int:
    count = 0
    for one, other in zip(left, right):
        if one != other:
            break
        count += 1
    return count


def _is_cut(longer: _Text, node: ast.stmt, shorter: _Text) -> bool:
    """Says whether cutting a statement and blanks around it gives the other text."""
    head, tail = longer.around(node)
    head, tail = head.rstrip(), tail.lstrip()
    raw = shorter.raw
    if not raw.startswith(head) or not raw.endswith(tail):
        return False
    return not raw[len(head) : len(raw) - len(tail)].strip()


def _is_override(node: ast.stmt, root: str, values: Values) -> bool:
    if REMOVE in values.values():
        pops = {f'{root}.pop({key!r})' for ((key,),) in (values.keys(),)}
        return ast.unparse(node).removeprefix('_base_.') in pops
    given: dict[str, Any] = {}
    for path, value in values.items():
        inner = given
        for key in path[:-1]:
            inner = inner.setdefault(key, {})
        inner[path[-1]] = value
    entries = _statement_entries(node, root)
    found = {key: _literal(item) for key, item in entries}
    return found == {key: (type(item), item) for key, item in given.items()}


def _is_only(node: ast.stmt, root: str, keys: set[str]) -> bool:
    entries = _statement_entries(node, root)
    return bool(entries) and {key for key, _ in entries} <= keys


def _statement_entries(node: ast.stmt, root: str) -> list[_Entry]:
    """Lists what ``root = dict(...)`` or ``root.update(...)`` sets, else nothing."""
    value = getattr(node, 'value', None)
    if not isinstance(value, (ast.Call, ast.Dict)):
        return []
    called = ast.unparse(value.func) if isinstance(value, ast.Call) else 'dict'
    target = node.targets[0] if isinstance(node, ast.Assign) else None
    if isinstance(target, ast.Subscript):
        key = getattr(target.slice, 'value', None)
        return [(key, value)] if ast.unparse(target.value) == root else []
    if isinstance(node, ast.Assign):
        known = called == 'dict' and ast.unparse(node.targets[0]) == root
    else:
        known = called == f'{root}.update'
    positional = [ast.unparse(arg) for arg in getattr(value, 'args', ())]
    entries = _entries(value)[len(positional) :]
    return entries if known and positional in ([], [root]) else []


def _literal(node: ast.expr) -> object:
    """Reads a literal, or a ``dict(k=literal)``, with its type."""
    try:
        if isinstance(node, ast.Call) and ast.unparse(node.func) == 'dict':
            items = {i.arg: ast.literal_eval(i.value) for i in node.keywords}
            return (dict, items) if not node.args else None
        value = ast.literal_eval(node)
    except (ValueError, TypeError):
        return None
    return type(value), value


def _verify_changed(
    old: _Text,
    new: _Text,
    left: ast.stmt,
    right: ast.stmt,
    root: str,
    values: Values,
    variable: str | None,
) -> str | None:
    name = variable or root
    stay = f'expected everything but the setting of {name} to stay as it is'
    names = {
        part
        for node in ast.walk(left)
        for part in (getattr(node, 'id', None), getattr(node, 'attr', None))
    }
    found = list(_differences(left, right, ()))
    if name not in names or old.around(left) != new.around(right) or len(found) != 1:
        return stay
    ((path, value),) = values.items()
    keys, before, after = found[0]
    named = tuple(key for key in keys if key is not None)
    placed = named in (path[: len(named)], path[len(path) - len(named) :])
    if not (placed or variable) or not _is_asked(before, after, path, value):
        return stay
    if old.around(before) != new.around(after):
        return stay
    kept = [old.code(item) for _, item in _entries(before)]
    fresh = [new.code(item) for _, item in _entries(after)]
    shorter, longer = (fresh, kept) if value is REMOVE else (kept, fresh)
    rest = iter(longer)
    same = isinstance(before, ast.Dict) or _called(before) == _called(after)
    if same and _entries(after) and not all(code in rest for code in shorter):
        return stay
    comments = _comments(old.code(left)), _comments(new.code(right))
    remaining = iter(comments[0])
    held = all(comment in remaining for comment in comments[1])
    if not held or (value is not REMOVE and comments[0] != comments[1]):
        return f'expected the comments in {name} to stay as they are'
    return None


def _differences(old: Any, new: Any, keys: _Keys) -> Iterator[tuple[_Keys, Any, Any]]:
    """Finds the smallest places at which two statements differ."""
    if ast.dump(old) == ast.dump(new):
        return
    if type(old) is type(new) and isinstance(old, (ast.Assign, ast.AnnAssign)):
        same = ast.dump(_emptied(old)) == ast.dump(_emptied(new))
        if same:
            yield from _differences(old.value, new.value, keys)
            return
    elif isinstance(old, ast.Expr) and isinstance(new, ast.Expr):
        yield from _differences(old.value, new.value, keys)
        return
    pairs = _entries(old), _entries(new)
    if (
        isinstance(old, (ast.Call, ast.Dict, ast.List))
        and type(old) is type(new)
        and [key for key, _ in pairs[0]] == [key for key, _ in pairs[1]]
        and _called(old) == _called(new)
    ):
        for (key, left), (_, right) in zip(*pairs):
            yield from _differences(left, right, (*keys, key))
        return
    yield keys, old, new


def _emptied(node: ast.Assign | ast.AnnAssign) -> ast.AST:
    if isinstance(node, ast.Assign):
        return ast.Tuple(node.targets, ast.Load())
    return node.target


def _called(node: Any) -> str:
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ''


def _is_asked(before: Any, after: Any, path: tuple[str, ...], value: Setting) -> bool:
    """Says whether one expression became another by the asked setting alone."""
    if value is not REMOVE and _literal(after) == (type(value), value):
        return True
    old, new = _entries(before), _entries(after)
    if _called(before) != _called(after) and not isinstance(before, ast.Dict):
        # x = y became x = dict(y, key=value)
        if _called(after) != 'dict' or len(new) != 2 or new[0][0] is not None:
            return False
        kept = ast.dump(new[0][1]) in (ast.dump(before), _template(before))
        return (
            kept
            and new[1][0] == path[-1]
            and _literal(new[1][1]) == (type(value), value)
        )
    if value is REMOVE:
        if isinstance(before, ast.List):
            return len(new) == len(old) - 1 and path[-1].isdigit()
        gone = {key for key, _ in old} - {key for key, _ in new}
        return len(new) == len(old) - 1 and gone == {path[-1]}
    added = [pair for pair in new if pair[0] not in {key for key, _ in old}]
    if len(added) != 1 or len(new) != len(old) + 1 or added[0][0] not in path:
        return False
    nested: object = value
    for inner in reversed(path[path.index(added[0][0]) + 1 :]):
        nested = {inner: nested}
    return _literal(added[0][1]) == (type(nested), nested)


def _template(node: Any) -> str:
    """Dumps the x in ``{{x}}``."""
    for _ in range(2):
        node = node.elts[0] if isinstance(node, ast.Set) else node
    return ast.dump(node)


def _entries(node: Any) -> list[_Entry]:
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values)
        return [(getattr(key, 'value', None), item) for key, item in pairs]
    if isinstance(node, ast.List):
        return [(str(index), item) for index, item in enumerate(node.elts)]
    if not isinstance(node, ast.Call):
        return []
    found: list[_Entry] = [(None, item) for item in node.args]
    return found + [(item.arg, item.value) for item in node.keywords]


def _comments(code: bytes) -> list[str]:
    tokens = tokenize.generate_tokens(io.StringIO(code.decode()).readline)
    return [token.string for token in tokens if token.type == tokenize.COMMENT]
