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
"""Marker before a paragraph of help whose lines click must not rewrap."""


def limit_width(width: int) -> int:
    """Returns the width at which to wrap help, so that lines fit ``width`` columns."""
    # the filler of a line's last character falls off its end
    return width - (not is_english())


class HelpFormatter(click.HelpFormatter):
    """Formatter of help that wraps by width in a terminal, as Chinese is wider."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.width = limit_width(self.width)

    def write_usage(self, prog: str, args: str = '', prefix: str | None = None) -> None:
        """Writes the usage line of a command's help."""
        super().write_usage(prog, widen(args), prefix)

    def write_text(self, text: str) -> None:
        """Writes paragraphs of a command's help."""
        super().write_text(widen(text))

    def write_dl(
        self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        """Writes options or commands with their help."""
        widened = [(name, widen(text)) for name, text in rows]
        super().write_dl(widened, col_max, col_spacing)

    def getvalue(self) -> str:
        """Returns the help text that was written so far."""
        return narrow(super().getvalue())


class Context(click.Context):
    """A click context that formats help by :class:`HelpFormatter`."""

    formatter_class = HelpFormatter


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
    """Copies a command with its help text in the user's language.

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
