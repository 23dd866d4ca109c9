"""Finds out whether workers could load what the training process loaded by itself.

A data set that never met a worker may use the card, start processes, hold a lock or
make batches that cannot be sent: then training would end, or wait for ever. So one
worker loads a batch that was loaded before, and hands it over, apart from the loader.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import re
import site
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

from mmgpu_hooks.schema.text import Text, phrase

_MOST_S = 45.0
"""Seconds within which a worker on trial must have started and delivered a batch.

Fewer than those after which a standstill is alarmed.
"""

_NO_DATA = ('/proc/', '/sys/')
"""Folders whose open files hold no training samples, besides folders of programs."""

_STANDARD = 2
"""Largest file descriptor of standard input, output and errors."""

_MOST_LETTERS = 200

_RAISED = re.compile(r'^[\w.]+: .*|^[\w.]*(?:Error|Exception|Interrupt)$', re.MULTILINE)
"""Regex for the line of a worker's traceback that names the exception."""


def find_shared_file(loader: Any) -> Text | None:
    """Returns which open file forked workers would share; ``None`` without one.

    Args:
        loader: A ``DataLoader`` without workers.
    """
    context = getattr(loader, 'multiprocessing_context', None) or multiprocessing
    path = _find_read_file() if context.get_start_method() == 'fork' else None
    if path is None:
        return None
    return phrase(
        '{path} is open for reading, and forked workers would share the position in it',
        path=path,
    )


def rehearse(loader: Any, index: Any) -> Text | None:
    """Tests whether a worker can load a batch; returns why not, ``None`` if it can.

    It takes as long as a worker takes to start and to load one batch. The loader is
    left alone, and no random number of the training process is drawn.

    Args:
        loader: A ``DataLoader`` without workers.
        index: What its sampler gave for a batch: an index, or a list of them.
    """
    try:
        _load(loader, index)
    except Exception as error:  # noqa: BLE001, a worker raises what it likes
        return phrase(
            'a worker could not load a batch ({reason})', reason=_name_reason(error)
        )
    return None


def _load(loader: Any, index: Any) -> None:
    import torch
    from torch.utils import data

    options: dict[str, Any] = {'batch_sampler': [index]}
    if not loader._auto_collation:
        options = {'sampler': [index], 'batch_size': None}
    batches: Any = iter(
        data.DataLoader(
            loader.dataset,
            num_workers=1,
            collate_fn=_Sent(loader.collate_fn),
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            timeout=_MOST_S,
            generator=torch.Generator(),
            **options,
        )
    )
    try:
        # while the worker lives that has what was sent
        pickle.loads(next(batches))
    finally:
        batches._shutdown_workers()


@dataclass
class _Sent:
    """A ``collate_fn`` that calls the user's, then packs the batch for sending.

    A worker sends in a thread of its own. What cannot be sent is lost there, and
    PyTorch waits for it. Packed twice, a file in shared memory would be left.
    """

    collate: Callable[[Any], Any]

    def __call__(self, samples: Any) -> bytes:
        return bytes(ForkingPickler.dumps(self.collate(samples)))


def _name_reason(error: Exception) -> str:
    """Returns an exception as one line of text, without a worker's traceback."""
    text = str(error).strip()
    if '\n' not in text:
        return f'{type(error).__name__}: {text}'[:_MOST_LETTERS]
    raised = _RAISED.findall(text) or text.splitlines()
    return str(raised[-1])[:_MOST_LETTERS]


def _list_program_folders() -> tuple[str, ...]:
    """Lists the folders of libraries, fonts and the like, each ending with a slash."""
    prefixes = (sys.prefix, sys.base_prefix, '/usr', '/usr/local', site.USER_BASE)
    return tuple(
        os.path.realpath(os.path.join(prefix, name)) + os.sep
        for prefix in prefixes
        if prefix
        for name in ('lib', 'lib64', 'share')
    )


def _find_read_file() -> str | None:
    """Finds a file open for reading whose position forked workers would share.

    A forked process has the same position in it. None is known where there is no
    ``/proc``.
    """
    import fcntl

    try:
        mapped = os.fsdecode(Path('/proc/self/maps').read_bytes())
        names = os.listdir('/proc/self/fd')
    except OSError:
        return None
    no_data = _NO_DATA + _list_program_folders()
    for name in names:
        descriptor = int(name)
        # it may have been closed meanwhile
        with contextlib.suppress(OSError):
            path = os.readlink(f'/proc/self/fd/{name}')
            access = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
            is_read = access == os.O_RDONLY and descriptor > _STANDARD
            is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
            is_data = not path.startswith(no_data) and not path.endswith(' (deleted)')
            if is_read and is_file and is_data and path not in mapped:
                return path
    return None
