"""Command line options for the settings that ``sweep`` and ``predict`` can vary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from mmgpu_hooks.commands import options
from mmgpu_hooks.recommend.job import Setting
from mmgpu_hooks.recommend.settings import SETTINGS
from mmgpu_hooks.schema.text import phrase, worded
from mmgpu_hooks.schema.values import Whole

SWITCH = click.Choice(('off', 'on'))


def setting_options(
    otherwise: str, defaults: Mapping[str, Sequence[Any]], **said: str
) -> options.Decorator[Any]:
    """Decorator that adds one option with several values for each tunable setting.

    Args:
        otherwise: What it is when it is not given, for ``--help``.
        defaults: Values by the name of the setting; others have none.
        **said: Help messages that differ, by the name of the setting.
    """

    def decorate(function: Any) -> Any:
        # decorators apply from the last to the first
        for setting in reversed(SETTINGS):
            about = phrase('{noun}; {otherwise}.', setting, otherwise=worded(otherwise))
            text = said.get(setting.name, about)
            kind, more = _find_kind(setting), {}
            if setting.name in defaults:
                more['default'] = defaults[setting.name]
            name = f'--{setting.name.replace("_", "-")}'
            function = options.several(name, kind, text, **more)(function)
        return function

    return decorate


def _find_kind(setting: Setting) -> click.ParamType[Any]:
    values = setting.values
    if isinstance(values, Whole):
        return options.WholeNumber(values.least, setting.most or values.most)
    return SWITCH


def read_asked(given: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Returns the values given on the command line for each setting, by setting name.

    Args:
        given: Arguments of the command.
    """
    return {
        setting.name: [
            value == 'on' if _find_kind(setting) is SWITCH else value
            for value in given[setting.name]
        ]
        for setting in SETTINGS
    }
