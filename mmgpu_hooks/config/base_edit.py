"""Chooses which file of an inheritance chain spells the settings. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mmgpu_hooks.config.draft import parse_module
from mmgpu_hooks.config.locate import locate_setting
from mmgpu_hooks.config.outcome import RefusedError, Setting


def locate_base(texts: Mapping[Path, str], settings: Mapping[str, Setting]) -> Path:
    """Finds the one file in which all settings are spelled.

    A setting that no file spells belongs where its dict is.

    Args:
        texts: The texts of the chain, the config itself first.
        settings: Values by dotted key.

    Raises:
        RefusedError: If there is none, or more than one.
    """
    chosen: dict[Path, str] = {}
    for dotted in settings:
        root, *keys = dotted.split('.')
        path = tuple(keys)
        kinds = {file: _locate(file, text, root, path) for file, text in texts.items()}
        spelled = [file for file, kind in kinds.items() if kind not in _NOT_SPELLED]
        partly = [file for file, kind in kinds.items() if kind == 'missing']
        # The farthest dict that lacks the key is the one that the others extend.
        found = spelled[:1] or partly[-1:]
        if not found:
            raise RefusedError(
                f'expected a base in this project that sets {root}, found none; edit '
                'the config itself'
            )
        chosen[found[0]] = dotted
    if len(chosen) > 1:
        raise RefusedError(
            'expected all settings in one file, found '
            + ' and '.join(f'{dotted} in {file}' for file, dotted in chosen.items())
            + '; change them one at a time'
        )
    return next(iter(chosen))


def _locate(file: Path, text: str, root: str, path: tuple[str, ...]) -> str:
    try:
        return locate_setting(parse_module(text), root, path).kind
    except RefusedError as refusal:
        refusal.path = file
        raise


_NOT_SPELLED = ('inherited', 'missing')
