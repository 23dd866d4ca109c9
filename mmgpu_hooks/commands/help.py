"""Shows the help of commands in the user's language."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable
from typing import Any

import click

from mmgpu_hooks.schema.text import worded
from mmgpu_hooks.show.text import narrow, widen
from mmgpu_hooks.show.words import is_english, say

_UNWRAPPED = '\b\n'
"""Mark before a paragraph of help, so that click keeps its line breaks."""


def limit_width(width: int) -> int:
    """Returns the width for wrapping help so that its lines fit ``width`` columns."""
    # the filler of a line's last character falls off its end
    return width - (not is_english())


class HelpFormatter(click.HelpFormatter):
    """Click's formatter of help, with line widths that fit Chinese text, too."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.width = limit_width(self.width)

    def write_usage(self, prog: str, args: str = '', prefix: str | None = None) -> None:
        """Appends the usage line of a command to the help text."""
        super().write_usage(prog, widen(args), prefix)

    def write_text(self, text: str) -> None:
        """Appends paragraphs to the help text, wrapped."""
        super().write_text(widen(text))

    def write_dl(
        self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        """Appends a list of options or commands, each with its help."""
        widened = [(widen(name), widen(text)) for name, text in rows]
        super().write_dl(widened, col_max, col_spacing)

    def getvalue(self) -> str:
        """Returns the help text that was written so far."""
        return narrow(super().getvalue())


class Context(click.Context):
    """Click context whose help is formatted by :class:`HelpFormatter`."""

    formatter_class = HelpFormatter


def say_paragraphs(words: str) -> str:
    """Translates a docstring or help text to the user's language, by paragraph."""
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
    """Returns a copy of a command whose help is in the user's language.

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
