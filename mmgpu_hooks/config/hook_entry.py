"""Settings that switch our hook on and off. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from mmgpu_hooks.config.bases import Chain, ReadChain
from mmgpu_hooks.config.consistency import find_hooks
from mmgpu_hooks.config.hook_text import HookText, parse_hooks
from mmgpu_hooks.config.loading import FlatConfig
from mmgpu_hooks.config.outcome import (
    REMOVE,
    RefusedError,
    Setting,
    UnseenError,
)
from mmgpu_hooks.config.request import HOOK_KEY, HOOK_TYPE

_ON = {f'default_hooks.{HOOK_KEY}.type': HOOK_TYPE}


def enabling_settings(before: FlatConfig | None, read: ReadChain) -> dict[str, Setting]:
    """Returns what adds the hook: nothing where it is on already.

    It goes into ``default_hooks``, which MMEngine merges with the base's; a
    ``custom_hooks`` list would replace the base's list.

    Raises:
        RefusedError: If its place is taken, or it may be.
    """
    if before is None:
        chain = read()
        own, *based = _parse_chain(chain)
        if own.places:
            return {}
        dropped = own.dropped
        for hooks in based:
            if hooks.places and dropped:
                raise UnseenError(
                    'expected a config that leaves the hooks of its bases alone, '
                    'found that it takes some out; let it be loaded'
                )
            if hooks.places:
                return {}
            dropped |= hooks.dropped
        for path, hooks in zip(chain.texts, (own, *based)):
            if hooks.taken is not None:
                raise UnseenError(
                    f'expected default_hooks.{HOOK_KEY} to be free, found another '
                    'hook there; rename or remove it',
                    hooks.taken,
                    path,
                )
        return dict(_ON)
    if find_hooks(before):
        return {}
    place = ('default_hooks', HOOK_KEY)
    if place in before:
        found = before.get((*place, 'type'), before[place])
        raise RefusedError(
            f'expected default_hooks.{HOOK_KEY} to be free, found {found!r} there; '
            'rename or remove it'
        )
    return dict(_ON)


def disabling_settings(
    before: FlatConfig | None, read: ReadChain
) -> dict[str, Setting]:
    """Returns what takes the hook out: nothing where there is none.

    Raises:
        RefusedError: If a list holds it twice, or it may be where nobody sees it.
    """
    if before is None:
        chain = read()
        own, *based = _parse_chain(chain)
        for path, hooks in list(zip(chain.texts, (own, *based)))[1:]:
            if hooks.places:
                raise UnseenError(
                    f'expected GPUEfficiencyHook in this file, found it in {path}; '
                    'let the config be loaded'
                )
        places = sorted(own.places)
    else:
        places = [(place[0], place[1]) for place in find_hooks(before)]
    if len([place for place in places if place[0] == 'custom_hooks']) > 1:
        raise RefusedError(
            'expected GPUEfficiencyHook at most once in custom_hooks, found it '
            'more often; drop one'
        )
    return {'.'.join(place): REMOVE for place in places}


def place_settings(
    settings: Mapping[str, Setting], before: FlatConfig | None, read: ReadChain
) -> tuple[dict[str, Setting], list[str]]:
    """Moves arguments of ``default_hooks.gpu_efficiency`` to where our hook really is.

    Args:
        settings: By dotted key.
        before: The loaded config, or ``None``.
        read: Reads the texts of the config and its bases.

    Returns:
        The settings, and the names of arguments that are left out, because the config
        has no hook of ours (it was switched on elsewhere) or more than one.
    """
    usual = f'default_hooks.{HOOK_KEY}.'
    if not any(dotted.startswith(usual) for dotted in settings):
        return dict(settings), []
    places = _find_places(before, read)
    placed, left_out = {}, []
    for dotted, value in settings.items():
        name = dotted.removeprefix(usual)
        if name == dotted:
            placed[dotted] = value
        elif len(places) == 1:
            placed['.'.join((*places[0], name))] = value
        else:
            left_out.append(name)
    return placed, left_out


def _find_places(before: FlatConfig | None, read: ReadChain) -> list[tuple[str, ...]]:
    if before is not None:
        return find_hooks(before)
    try:
        seen = _parse_chain(read())
    except UnseenError:
        return []
    dropped = False
    for hooks in seen:
        if hooks.places:
            return [] if dropped else sorted(hooks.places)
        dropped |= hooks.dropped
    return []


def verify_own(chain: Chain, dotted: str) -> None:
    """Refuses an argument of a hook whose text does not say that it is ours.

    Raises:
        UnseenError: If its entry is another's, or its type cannot be read.
    """
    root, key, *_ = dotted.split('.')
    seen = [parse_hooks(text) for text in chain.texts.values()]
    if not any((root, key) in hooks.places for hooks in seen):
        raise UnseenError(
            f'expected GPUEfficiencyHook at {root}.{key}, found another or none in '
            'the text; let the config be loaded'
        )


def _parse_chain(chain: Chain) -> list[HookText]:
    """Reads the config and its bases, and refuses what cannot be known."""
    if chain.unseen is not None:
        raise UnseenError(
            f'expected bases that can be read without loading, found {chain.unseen}; '
            'let the config be loaded'
        )
    found = []
    for path, text in chain.texts.items():
        found.append(parse_hooks(text))
        if found[-1].loose is not None:
            raise UnseenError(
                'expected GPUEfficiencyHook only as the type of a hook, found its '
                'name elsewhere; let the config be loaded',
                found[-1].loose,
                path,
            )
    return found
