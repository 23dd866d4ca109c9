"""A bar for what takes minutes; silent where there is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Callable

from mmgpu_hooks.show.escaping import unguarded, visible


@contextmanager
def show_progress() -> Iterator[Callable[[str, float], None]]:
    """A bar on standard error, for as long as the context lives.

    Yields:
        What to call with words and the share that is done, 0 to 1.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    console = Console(file=unguarded(sys.stderr), highlight=False)
    columns = (
        SpinnerColumn(),
        BarColumn(bar_width=24),
        TextColumn('{task.description}'),
        TimeElapsedColumn(),
    )
    is_quiet = not sys.stderr.isatty()
    with Progress(
        *columns, console=console, transient=True, disable=is_quiet
    ) as progress:
        task = progress.add_task('', total=1.0)
        yield lambda words, share: progress.update(
            task, description=visible(words), completed=share
        )


def warner(name: str) -> Callable[[str], None]:
    """What prints a sentence of a command on standard error at once."""
    return lambda sentence: print(f'mmgpu {name}: {sentence}', file=sys.stderr)
