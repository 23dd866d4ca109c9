"""Environment variables that switch GPUEfficiencyHook on or off, and their parsing.

``mmgpu run`` sets them, its children inherit them, and the hook reads them.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

from mmgpu_hooks.config.hook_arguments import check_argument

RUN = 'MMGPU_RUN'
"""Environment variable that adds GPUEfficiencyHook to trainings, with its arguments.

Every one of them then has the hook; the variable holds its arguments, as JSON."""
DISABLE = 'MMGPU_DISABLE'
"""Environment variable that switches all of mmgpu_hooks off; ``0`` means not set.

A hook that a config names is off, too."""

SWITCHES = (RUN, DISABLE)

INJECTED = Path(__file__).resolve().parents[1] / 'injected'
"""Folder of the ``sitecustomize`` module that ``mmgpu run`` adds to ``PYTHONPATH``."""


def is_disabled(environ: Mapping[str, str]) -> bool:
    """True if MMGPU_DISABLE switches all of mmgpu_hooks off."""
    return environ.get(DISABLE, '') not in ('', '0')


def switch_on(
    environ: Mapping[str, str], arguments: Mapping[str, Any]
) -> dict[str, str]:
    """Returns an environment in which MMEngine trainings get GPUEfficiencyHook.

    Args:
        environ: The environment as it is.
        arguments: Of the hook, those that were given.
    """
    ours, path = str(INJECTED), environ.get('PYTHONPATH', '')
    folders = path.split(os.pathsep) if path else []
    others = [folder for folder in folders if folder != ours]
    return {
        **environ,
        RUN: json.dumps(dict(arguments)),
        'PYTHONPATH': os.pathsep.join([ours, *others]),
    }


def compile_injected() -> None:
    """Compiles ``mmgpu run``'s ``sitecustomize`` module into Python's cache.

    Each Python below would compile it anew, in some 3 ms, where
    ``PYTHONDONTWRITEBYTECODE`` is set. One that is there and valid stays; where it may
    not be written, nothing is said.
    """
    before = sys.dont_write_bytecode
    sys.dont_write_bytecode = False
    try:
        path = str(INJECTED / 'sitecustomize.py')
        SourceFileLoader('sitecustomize', path).get_code('sitecustomize')
    finally:
        sys.dont_write_bytecode = before


def read_arguments(environ: Mapping[str, str]) -> dict[str, Any]:
    """Returns GPUEfficiencyHook's arguments by name, from the variable MMGPU_RUN.

    Raises:
        ValueError: If they are none that the hook can be built with.
    """
    try:
        found = json.loads(environ.get(RUN) or '{}')
        for name, value in found.items():
            check_argument(name, value)
    except (AttributeError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f'{RUN} is not as mmgpu run left it') from error
    return dict(found)


def render_options(arguments: Mapping[str, Any]) -> list[str]:
    """Returns GPUEfficiencyHook's arguments as options of ``mmgpu run``."""
    words = []
    for name, value in arguments.items():
        option = name.removesuffix('_s').replace('_', '-')
        if isinstance(value, bool):
            words.append(f'--{option}' if value else f'--no-{option}')
        else:
            words += [f'--{option}', str(value)]
    return words
