"""Describes the exception that ended a training, for the record of its end."""

from __future__ import annotations

import re
import traceback
from typing import Any, NamedTuple

_LETTERS, _MOST_LINES = 300, 60
"""Maximum length of a recorded traceback: characters per line, and lines."""
_FETCH = re.compile(r'torch[/\\]utils[/\\]data[/\\]_utils[/\\]fetch\.py$')

_NO_GRADIENT = re.compile(
    r'did not receive grad for rank \d+: ?(?P<found>[^\n]*)', re.ASCII
)
_MOST_PARAMETERS = 32


def find_without_gradient(model: Any, error: BaseException | None) -> tuple[str, ...]:
    """Names the parameters without gradient, by DistributedDataParallel's exception.

    Its exception counts the parameters that require one, in the order of the model's
    modules, or names them where ``TORCH_DISTRIBUTED_DEBUG`` is set.
    """
    found = _NO_GRADIENT.findall(str(error or ''))
    if not found:
        return ()
    module = getattr(model, 'module', model)
    names = [name for name, own in module.named_parameters() if own.requires_grad]
    listed = [word.strip(' .') for text in found for word in re.split('[, ]+', text)]
    named = [
        names[int(word)] if word.isdecimal() and int(word) < len(names) else word
        for word in listed
        if word and (word in names or word.isdecimal())
    ]
    return tuple(dict.fromkeys(named))[:_MOST_PARAMETERS]


class RaisedError(NamedTuple):
    """Class, traceback and dataset sample of the exception that ended training."""

    error: str | None = None
    """Class name of the exception that ended training; ``None`` if there was none."""
    traceback: tuple[str, ...] = ()
    """Lines of the traceback without source code, including a worker's traceback."""
    sample: str | None = None
    """Index of the dataset sample that could not be loaded; ``None`` if unknown."""


def describe_raised(error: BaseException) -> RaisedError:
    """Describes the exception that ended the train loop, with its traceback."""
    printed = traceback.format_exception(type(error), error, error.__traceback__)
    lines = [
        line[:_LETTERS]
        for line in ''.join(printed).splitlines()
        if not line.startswith('    ')
    ]
    return RaisedError(
        error=type(error).__name__,
        traceback=tuple(lines[-_MOST_LINES:]),
        sample=_find_sample(error),
    )


def _find_sample(error: BaseException) -> str | None:
    """Finds in a traceback the index of the dataset sample that could not be loaded."""
    is_loading = False
    for frame, _ in traceback.walk_tb(error.__traceback__):
        is_loading |= bool(_FETCH.search(frame.f_code.co_filename))
        asked = frame.f_locals.get('idx', frame.f_locals.get('index'))
        if is_loading and isinstance(asked, int):
            return f'index {asked}'
    return None
