"""Settings that switch our hook on and off. Pure."""

from __future__ import annotations

import ast

from mmgpu_hooks.configfile.consistency import find_hooks, is_our_hook
from mmgpu_hooks.configfile.loading import FlatConfig
from mmgpu_hooks.configfile.outcome import REMOVE, RefusedError, Setting
from mmgpu_hooks.configfile.request import HOOK_KEY, HOOK_TYPE


def enabling_settings(before: FlatConfig | None, text: str) -> dict[str, Setting]:
    """Returns what adds the hook: nothing where it is on already.

    It goes into ``default_hooks``, which MMEngine merges with the base's; a
    ``custom_hooks`` list would replace the base's list.

    Raises:
        RefusedError: If its place is taken.
    """
    if before is None:
        return {} if _is_named(text) else {f'default_hooks.{HOOK_KEY}.type': HOOK_TYPE}
    if find_hooks(before):
        return {}
    place = ('default_hooks', HOOK_KEY)
    if place in before:
        found = before.get((*place, 'type'), before[place])
        raise RefusedError(
            f'expected default_hooks.{HOOK_KEY} to be free, found {found!r} there; '
            'rename or remove it'
        )
    return {f'default_hooks.{HOOK_KEY}.type': HOOK_TYPE}


def disabling_settings(before: FlatConfig | None, text: str) -> dict[str, Setting]:
    """Returns what takes the hook out: nothing where there is none.

    Raises:
        RefusedError: If a list holds it twice.
    """
    if before is None:
        return {f'default_hooks.{HOOK_KEY}': REMOVE} if _is_named(text) else {}
    places = find_hooks(before)
    if len([place for place in places if place[0] == 'custom_hooks']) > 1:
        raise RefusedError(
            'expected GPUEfficiencyHook at most once in custom_hooks, found it '
            'more often; drop one'
        )
    return {'.'.join(place): REMOVE for place in places}


def _is_named(text: str) -> bool:
    nodes = ast.walk(ast.parse(text))
    return any(
        isinstance(node, ast.Constant) and is_our_hook(node.value) for node in nodes
    )
