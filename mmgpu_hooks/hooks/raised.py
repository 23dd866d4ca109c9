"""What an exception that ended training tells, in a few short lines."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Any

_LETTERS = 300
_FRAMES = 3
_LIBRARIES = re.compile(
    r'site-packages|dist-packages|[/\\]lib[/\\]python\d|<frozen|mmgpu_hooks[/\\]hooks'
)
_FETCH = re.compile(r'torch[/\\]utils[/\\]data[/\\]_utils[/\\]fetch\.py$')
_ERROR = re.compile(r'[\w.]*(?:Error|Exception|error)\b')
_FRAME = re.compile(r'^\s*File "(.+)", line (\d+), in (.+)$', re.MULTILINE)
_PATH = re.compile(r'[\'"]([^\'"\n]*[/\\][^\'"\n]+|[^\'"\n]+\.\w{2,5})[\'"]')
_INDEX = re.compile(r'\b(?:index|idx|sample|img_id|image)[ =:#]{1,2}(\d+)\b')


def describe_error(error: BaseException) -> dict[str, Any]:
    """Fields of an end record.

    Args:
        error: What passed through the train loop, and was caught nowhere.

    Returns:
        Type, first line of the message, what led to it, innermost frames of the user's
        code, those of a loader worker, and the sample that raised where that shows.
    """
    first, _, rest = str(error).partition('\n')
    message = first[:_LETTERS]
    # PyTorch puts the worker's traceback below
    worker = rest if 'Original Traceback' in rest[:200] else ''
    worker_frames = [f'{m[1]}:{m[2]} in {m[3]}' for m in _FRAME.finditer(worker)]
    worker_error = _last_line(worker)
    in_dataset, index = _find_sample(error.__traceback__)
    said = worker_error or (f'{type(error).__name__}: {message}' if in_dataset else '')
    return {
        'error': type(error).__name__,
        'message': message,
        'causes': tuple(_causes(error)),
        'frames': _innermost(
            f'{frame.filename}:{frame.lineno} in {frame.name}'
            for frame in traceback.extract_tb(error.__traceback__)
        ),
        'worker_frames': _innermost(worker_frames),
        'worker_error': worker_error,
        'sample': index or _sample_of(said),
    }


def _last_line(text: str) -> str | None:
    raised = re.findall(r'^[A-Za-z_].*', text, re.MULTILINE)
    named = [line for line in raised if _ERROR.match(line)]
    return next((line[:_LETTERS] for line in [*named[-1:], *raised[-1:]]), None)


def _causes(error: BaseException) -> Iterator[str]:
    seen = {id(error)}
    while len(seen) < 5:
        before = error.__cause__ or error.__context__
        if before is None or id(before) in seen:
            return
        error = before
        seen.add(id(error))
        yield f'{type(error).__name__}: {str(error).partition(chr(10))[0][:_LETTERS]}'


def _innermost(frames: Any) -> tuple[str, ...]:
    every = [frame[-_LETTERS:] for frame in frames]
    users = [frame for frame in every if not _LIBRARIES.search(frame)]
    return tuple((users or every)[-_FRAMES:])


def _find_sample(position: TracebackType | None) -> tuple[bool, str | None]:
    """Whether the data set raised in this process, and the index it was asked for."""
    in_dataset, index = False, None
    while position is not None:
        frame = position.tb_frame
        if _FETCH.search(frame.f_code.co_filename):
            in_dataset = True
        if in_dataset and index is None:
            asked = frame.f_locals.get('idx', frame.f_locals.get('index'))
            index = f'index {asked}' if isinstance(asked, int) else None
        position = position.tb_next
    return in_dataset, index or ('index unknown' if in_dataset else None)


def _sample_of(said: str) -> str | None:
    path, index = _PATH.search(said), _INDEX.search(said)
    return path[1] if path else f'index {index[1]}' if index else None
