"""Prints the answers, warnings and progress bars of commands."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from mmgpu_hooks.schema.text import Text, phrase, quoted
from mmgpu_hooks.show.document import Section
from mmgpu_hooks.show.terminal import DEFAULT_WIDTH, render
from mmgpu_hooks.show.text import visible
from mmgpu_hooks.show.words import say

AnswerT = TypeVar('AnswerT')


def print_sections(sections: Sequence[Section]) -> None:
    """Prints sections of a command's output, fitted to terminal width and colours.

    A pipe or a file gets the default width and no colour; ``NO_COLOR`` is heeded.
    """
    width, is_terminal = DEFAULT_WIDTH, sys.stdout.isatty()
    if is_terminal:
        width = shutil.get_terminal_size((DEFAULT_WIDTH, 24)).columns
    color = is_terminal and 'NO_COLOR' not in os.environ
    print(render(sections, width=width, color=color))


def print_answer(
    answer: AnswerT,
    form: str,
    describe: Callable[[AnswerT], Sequence[Section]],
    render_json: Callable[[AnswerT], str],
) -> None:
    """Prints a command's result as text or as JSON, according to ``--format``."""
    if form == 'json':
        print(render_json(answer))
    else:
        print_sections(describe(answer))


def warner(name: str) -> Callable[[str], None]:
    """Makes a function that prints a command's warnings to standard error."""
    return lambda sentence: print(
        f'mmgpu {name}: {say(sentence)}', file=sys.stderr, flush=True
    )


@contextmanager
def show_progress() -> Iterator[Callable[[str, float, float | None], None]]:
    """Context that yields a callback for a progress bar on standard error.

    Yields:
        What to call with words, the share that is done (0 to 1), and the seconds that
        are left, ``None`` while that is unknown.
    """
    if not sys.stderr.isatty():
        yield lambda words, share, left_s: None
        return
    # late: a quiet command does without
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    # the stream itself: a bar moves the cursor
    console = Console(file=sys.__stderr__, highlight=False)
    columns = (
        TextColumn('{task.description}'),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn('{task.fields[left]}'),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task('', total=1.0, left='')
        yield lambda words, share, left_s: progress.update(
            task,
            description=visible(say(words)),
            completed=share,
            left=say(phrase_left(left_s)),
        )


def phrase_left(left_s: float | None) -> Text:
    """Returns the time left as text, such as ``12 s left``; empty if unknown."""
    if left_s is None:
        return quoted('')
    if left_s < 90:
        return phrase('{left_s:.0f} s left', left_s=max(left_s, 0.0))
    hours, minutes = divmod(round(left_s / 60), 60)
    if hours:
        return phrase('{hours:d} h {minutes} min left', hours=hours, minutes=minutes)
    return phrase('{minutes} min left', minutes=minutes)
