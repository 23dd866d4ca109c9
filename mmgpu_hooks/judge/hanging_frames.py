"""Table of calls in which workers or the pinning thread hang, with their causes.

Data alone, each with an example. A row counts where its pattern matches one of the
innermost calls; of two rows the upper one does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_MOST_CALLS = 8
"""Number of innermost calls of a stack compared with known hanging calls.

Those farther out are the DataLoader's own.
"""


@dataclass(frozen=True)
class HangingFrame:
    """Call that never ends, with its cause and its remedy."""

    pattern: str
    """Regex for a call, as ``file:line in function``."""
    cause: str
    """Name of the cause of a hanging call, a key of `CAUSES`."""
    reason: str
    """Clause that says why a hanging call never ends."""
    do: str
    """Sentence that names the remedy against a hanging call."""
    example: str
    """Example of a hanging call that the pattern matches."""
    is_pinning: bool = False
    """True if the frame is of the thread that pins batches, and not of a worker."""
    call: str | None = None
    """System call that a process must be in to match; ``None`` accepts any.

    Where one is named, only the innermost call is compared with the pattern.
    """


HANGING_FRAMES = (
    HangingFrame(
        pattern=r'/logging/__init__\.py:\d+ in (?:acquire|handle|emit|_acquireLock)$',
        cause='worker_deadlock',
        reason='the lock of a logging handler was held while the worker was forked',
        do='Log nothing from a thread while workers start, or start them by spawn: '
        "env_cfg.mp_cfg.mp_start_method='spawn'.",
        example='/usr/lib/python3.11/logging/__init__.py:922 in acquire',
    ),
    HangingFrame(
        pattern=r'/grpc/|/google/cloud/|/tensorflow/python/',
        cause='worker_deadlock',
        reason='gRPC does not survive a fork: its threads and locks stay behind',
        do='Open the client inside the worker, at its first sample, or set '
        'GRPC_ENABLE_FORK_SUPPORT=1 before the import.',
        example='/env/lib/python3.11/site-packages/grpc/_channel.py:1178 in _blocking',
    ),
    HangingFrame(
        pattern=r'/matplotlib/|/tkinter/|/PyQt\d/|in (?:imshow|waitKey)$',
        cause='worker_stuck',
        reason='it opens or draws a window, and there is no screen, or no event loop',
        do="matplotlib.use('Agg') before pyplot is imported, and no imshow or show in "
        'the pipeline.',
        example='/env/lib/python3.11/site-packages/matplotlib/pyplot.py:614 in show',
    ),
    HangingFrame(
        pattern=r'/h5py/',
        cause='worker_deadlock',
        reason='an HDF5 file that was opened before the fork is read by several '
        'processes: they share its lock and its position',
        do='Open the file inside the worker, at its first sample, and not in __init__.',
        example='/env/lib/python3.11/site-packages/h5py/_hl/dataset.py:841 in '
        '__getitem__',
    ),
    HangingFrame(
        pattern=r'/lmdb/|(?i:lmdb_backend\.py)|in (?:get_lmdb|read_lmdb)$',
        cause='worker_deadlock',
        reason='an LMDB environment that was opened before the fork must not be used '
        'in the child',
        do='Open it inside the worker, at its first sample, with lock=False and '
        'readahead=False.',
        example='/env/lib/python3.11/site-packages/lmdb/cffi.py:1210 in begin',
    ),
    HangingFrame(
        pattern=r'/decord/',
        cause='worker_deadlock',
        reason='decord decodes in threads of its own, which a fork does not copy',
        do='decord.VideoReader(..., num_threads=1), opened inside the worker; or '
        'another backend (PyAV, OpenCV).',
        example='/env/lib/python3.11/site-packages/decord/video_reader.py:163 in '
        'get_batch',
    ),
    HangingFrame(
        pattern=r'/(?:urllib3|requests|boto3|botocore|http|socket|ssl)(?:/|\.py:)',
        cause='storage_stalled',
        reason='it waits for a server over the network, without a time-out',
        do='Set a time-out on the request, and copy the data next to the training.',
        example='/usr/lib/python3.11/socket.py:706 in readinto',
    ),
    HangingFrame(
        pattern=r'/torch/(?:utils/data/_utils/pin_memory|cuda/|accelerator/)',
        cause='worker_stuck',
        reason='the thread that pins batches waits for a device: as a rule another '
        "one than this rank's, which it opened by itself",
        do='torch.cuda.set_device(local_rank) before the loader is made, or '
        'pin_memory=False in the loader.',
        example='/env/lib/python3.11/site-packages/torch/cuda/__init__.py:567 in '
        'set_device',
        is_pinning=True,
    ),
    HangingFrame(
        # Python's own threads may be waited for, too
        pattern=r'^(?!.*/(?:threading|queue)\.py:|.*/(?:concurrent|asyncio)/)',
        call='futex',
        cause='worker_deadlock',
        reason='it waits for a lock, or for a thread of C code (OpenMP, OpenCV), '
        'that a fork does not copy',
        do='Compute nothing with several threads before workers start '
        '(torch.set_num_threads(1), cv2.setNumThreads(0), OMP_NUM_THREADS=1), or start '
        "them by spawn: env_cfg.mp_cfg.mp_start_method='spawn'.",
        example='/opt/project/transforms.py:41 in resize',
    ),
)

_WAITS = re.compile(r'multiprocessing/(?:queues|connection|synchronize)|selectors')
"""Regex for calls in which a thread or worker is idle and waits for work."""


def find_hanging_frame(
    calls: Sequence[str], is_pinning: bool = False, call: str | None = None
) -> HangingFrame | None:
    """Finds the known hanging call among a thread's innermost calls, or ``None``.

    Args:
        calls: The innermost first.
        is_pinning: Whether they are of the thread that pins.
        call: System call that the process waits in; ``None`` where that is unknown.
    """
    if any(_WAITS.search(call) for call in calls[:3]):
        return None
    for row in HANGING_FRAMES:
        if row.is_pinning != is_pinning or row.call not in (None, call):
            continue
        seen = calls[:_MOST_CALLS] if row.call is None else calls[:1]
        if any(re.search(row.pattern, its) for its in seen):
            return row
    return None
