"""Functions that make DataLoader workers hang in ways seen in real trainings.

Some are the real thing: a lock of `logging` and threads of OpenMP that a fork does not
carry over, a loop that tries again for ever. The others stand in for libraries
that are not installed, or do not hang in this version: code that waits, compiled under
the names of their files, so that the stacks are theirs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

PACKAGES = '/env/lib/python3/site-packages'
_LOCK = """
import threading

def {name}(lock=threading.Lock()):
    lock.acquire()
    lock.acquire()
"""


def compile_waiting(file: str, name: str) -> Callable[[], object]:
    """Returns a function that waits for ever, compiled under a library's file name."""
    found: dict[str, Any] = {}
    exec(compile(_LOCK.format(name=name), f'{PACKAGES}/{file}', 'exec'), found)
    function: Callable[[], object] = found[name]
    return function


class OwnHandler(logging.Handler):
    """Log handler whose lock ``logging`` does not renew after a fork."""

    def createLock(self) -> None:  # noqa: N802  # as `logging` names it
        """Creates the handler's lock without registering it for forks."""
        self.lock = threading.RLock()


def hold_log() -> None:
    """Adds a log handler and holds its lock in another thread."""
    handler = OwnHandler()
    logging.getLogger('data').addHandler(handler)
    holding = threading.Thread(target=handler.acquire)
    holding.start()
    holding.join()


def log() -> None:
    """Logs one line, which blocks on the handler's lock."""
    logging.getLogger('data').warning('this image has no boxes')


def _compute() -> None:
    torch.set_num_threads(2)
    torch.ones(4_000_000).exp_().sum()


def _try_for_ever() -> None:
    while True:
        try:
            Path('/data/train/missing.jpg').read_bytes()
        except OSError:
            time.sleep(0.05)


def hang_pin_thread() -> None:
    """Makes the DataLoader's pin-memory thread wait for a GPU that never answers."""
    waiting = compile_waiting('torch/accelerator/__init__.py', 'set_device_index')
    torch.accelerator.is_available = lambda: True
    torch.accelerator.current_accelerator = lambda *_: torch.device('cuda')
    torch.accelerator.current_device_index = lambda: 0
    torch.accelerator.set_device_index = lambda _: waiting()


BEFORE_FORK: dict[str, Callable[[], object]] = {
    'logging': hold_log,
    'OpenMP': _compute,
    'pin thread': hang_pin_thread,
}
"""Functions that prepare a hang in the training process before workers start."""
IN_SAMPLE: dict[str, Callable[[], object]] = {
    'logging': log,
    'OpenMP': _compute,
    'gRPC': compile_waiting('grpc/_channel.py', '_blocking'),
    'retry': _try_for_ever,
    'matplotlib': compile_waiting('matplotlib/pyplot.py', 'show'),
    'h5py': compile_waiting('h5py/_hl/dataset.py', '__getitem__'),
    'lmdb': compile_waiting('lmdb/cffi.py', 'begin'),
}
"""Functions that hang in a worker process, by kind of hang."""
