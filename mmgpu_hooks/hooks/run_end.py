"""Describes the exception that ended a training, for the record of its end."""

from __future__ import annotations

import re
import traceback
from collections.abc import Sequence
from typing import Any, NamedTuple

_LETTERS, _MOST_LINES = 300, 60
"""Maximum length of a recorded traceback: characters per line, and lines."""
_FETCH = re.compile(r'torch[/\\]utils[/\\]data[/\\]_utils[/\\]fetch\.py$')

_NO_GRADIENT = re.compile(
    r'did not receive grad for rank \d+: ?(?P<found>[^\n]*)', re.ASCII
)
_MOST_PARAMETERS = 32


def list_trained(model: Any) -> tuple[str, ...]:
    """Lists names of the parameters that require a gradient, in the order of modules.

    DistributedDataParallel counts by this order, as it is when the model is wrapped.
    """
    module = getattr(model, 'module', model)
    ignored = getattr(module, '_ddp_params_and_buffers_to_ignore', ())
    return tuple(
        name
        for name, own in module.named_parameters()
        if own.requires_grad and name not in ignored
    )


def find_without_gradient(
    model: Any, trained: Sequence[str], error: BaseException | None
) -> tuple[str, ...]:
    """Finds in DistributedDataParallel's exception which parameters got no gradient.

    Its exception counts them, or names them where ``TORCH_DISTRIBUTED_DEBUG`` is set.

    Args:
        model: The model, as it is wrapped.
        trained: What :func:`list_trained` gave when training began.
        error: The exception that ended training.

    Returns:
        Nothing where parameters were frozen or freed since the model was wrapped, so
        that its count is another.
    """
    found = _NO_GRADIENT.findall(str(error or ''))
    words = [word.strip(' .') for text in found for word in re.split('[, ]+', text)]
    module = getattr(model, 'module', model)
    known = {name for name, _ in module.named_parameters()} if found else set()
    named = [word for word in words if word in known]
    if found and not named and _count_reduced(model) == len(trained):
        numbers = [int(word) for word in words if word.isdecimal()]
        named = [trained[number] for number in numbers if number < len(trained)]
    return tuple(dict.fromkeys(named))[:_MOST_PARAMETERS]


def _count_reduced(model: Any) -> int | None:
    """Counts the parameters whose gradients DistributedDataParallel reduces."""
    read = getattr(model, '_get_ddp_logging_data', None)
    return None if read is None else read().get('num_parameter_tensors')


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
