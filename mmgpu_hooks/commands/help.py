"""Shows the help of commands in the user's language."""

from __future__ import annotations

import copy
import inspect

import click

from mmgpu_hooks.schema.text import worded
from mmgpu_hooks.show.words import say

_UNWRAPPED = '\b\n'
"""Marker before a paragraph whose lines click leaves as they are."""


def say_paragraphs(words: str) -> str:
    """Translates a docstring or help message paragraph by paragraph."""
    said = []
    for paragraph in inspect.cleandoc(words).split('\n\n'):
        if paragraph.startswith(_UNWRAPPED):
            body = paragraph.removeprefix(_UNWRAPPED)
            said.append(_UNWRAPPED + say(worded(body)))
        else:
            # a catalog has it as one line
            said.append(say(worded(' '.join(paragraph.split()))))
    return '\n\n'.join(said)


def translate_help(command: click.Command, ctx: click.Context) -> click.Command:
    """Copies a command with its help in the user's language.

    Args:
        command: As it was declared, in English.
        ctx: Of its invocation.
    """
    shown = copy.copy(command)
    shown.help = say_paragraphs(command.help) if command.help else command.help
    shown.epilog = say(command.epilog) if command.epilog else command.epilog
    shown.params = [_translate_option(param) for param in command.params]
    return shown


def _translate_option(param: click.Parameter) -> click.Parameter:
    if not isinstance(param, click.Option) or not param.help:
        return param
    shown = copy.copy(param)
    shown.help = say(worded(param.help))
    return shown
