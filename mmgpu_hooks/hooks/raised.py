"""What an exception that ended training tells: its traceback, in short."""

from __future__ import annotations

import re
import traceback
from typing import Any

_LETTERS, _MOST_LINES = 300, 60
_FETCH = re.compile(r'torch[/\\]utils[/\\]data[/\\]_utils[/\\]fetch\.py$')


def describe_error(error: BaseException) -> dict[str, Any]:
    """Fields of an end record.

    Args:
        error: What passed through the train loop, and was caught nowhere.

    Returns:
        Its type, its traceback without lines of code (PyTorch puts a worker's into the
        message), and the sample that raised in this process.
    """
    printed = traceback.format_exception(type(error), error, error.__traceback__)
    lines = [
        line[:_LETTERS]
        for line in ''.join(printed).splitlines()
        if not line.startswith('    ')
    ]
    return {
        'error': type(error).__name__,
        'traceback': tuple(lines[-_MOST_LINES:]),
        'sample': _find_sample(error),
    }


def _find_sample(error: BaseException) -> str | None:
    """The index that the data set was asked for."""
    is_loading = False
    for frame, _ in traceback.walk_tb(error.__traceback__):
        is_loading |= bool(_FETCH.search(frame.f_code.co_filename))
        asked = frame.f_locals.get('idx', frame.f_locals.get('index'))
        if is_loading and isinstance(asked, int):
            return f'index {asked}'
    return None
