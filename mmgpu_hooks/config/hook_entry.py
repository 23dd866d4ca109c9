"""Settings that switch our hook on and off. Pure.

``before`` is the loaded config, or ``None`` where it cannot be loaded.
"""

from __future__ import annotations

from collections.abc import Mapping

from mmgpu_hooks.config.consistency import find_hooks
from mmgpu_hooks.config.loading import FlatConfig
from mmgpu_hooks.config.outcome import REMOVE, RefusedError, Setting
from mmgpu_hooks.config.request import HOOK_KEY, HOOK_TYPE

_PLACE = ('default_hooks', HOOK_KEY)


def enabling_settings(before: FlatConfig | None) -> dict[str, Setting]:
    """Returns what adds the hook: nothing where it is on already.

    It goes into ``default_hooks``, which MMEngine merges with the base's; a
    ``custom_hooks`` list would replace the base's list.

    Raises:
        RefusedError: If its place is taken.
    """
    if before is not None and find_hooks(before):
        return {}
    if before is not None and _PLACE in before:
        found = before.get((*_PLACE, 'type'), before[_PLACE])
        raise RefusedError(
            f'expected default_hooks.{HOOK_KEY} to be free, found {found!r} there; '
            'rename or remove it'
        )
    return {f'default_hooks.{HOOK_KEY}.type': HOOK_TYPE}


def disabling_settings(before: FlatConfig | None) -> dict[str, Setting]:
    """Returns what takes the hook out: nothing where there is none.

    Raises:
        RefusedError: If a list holds it twice.
    """
    places = [_PLACE] if before is None else find_hooks(before)
    if len([place for place in places if place[0] == 'custom_hooks']) > 1:
        raise RefusedError(
            'expected GPUEfficiencyHook at most once in custom_hooks, found it '
            'more often; drop one'
        )
    return {'.'.join(place): REMOVE for place in places}


def place_settings(
    settings: Mapping[str, Setting], before: FlatConfig | None
) -> tuple[dict[str, Setting], list[str]]:
    """Moves arguments of ``default_hooks.gpu_efficiency`` to where our hook really is.

    Returns:
        The settings, and the names of arguments that are left out, because the config
        has no hook of ours (it was switched on elsewhere) or more than one.
    """
    places = find_hooks(before or {})
    placed, left_out = {}, []
    for dotted, value in settings.items():
        name = dotted.removeprefix(f'{".".join(_PLACE)}.')
        if name == dotted:
            placed[dotted] = value
        elif len(places) == 1:
            placed['.'.join((*places[0], name))] = value
        else:
            left_out.append(name)
    return placed, left_out
