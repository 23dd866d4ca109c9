"""Table of calls in which workers or the pinning thread hang, with their causes.

Data alone, each with an example. A row counts where its pattern matches one of the
innermost calls; of two rows the upper one does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_FOLDERS = {
    '<package>': r'/(?:site|dist)-packages/',
    '<library>': r'/lib(?:64)?/python3[^/]*/',
}
"""Regexes for the folders of installed packages and of the standard library.

A user's own folder may be named as a library is.
"""
_STANDARD = re.compile(r'/lib(?:64)?/python3[^/]*/(?!(?:site|dist)-packages/)|^<frozen')
"""Regex for a call in the standard library."""

_AT_A_LOCK = 'futex', 'poll', 'ppoll', 'epoll_wait', 'epoll_pwait'
_AT_A_SERVER = (
    *('read', 'recvfrom', 'recvmsg', 'write', 'sendto', 'connect', 'select'),
    *('pselect6', 'poll', 'ppoll', 'epoll_wait', 'epoll_pwait'),
)
_AT_A_WINDOW = (*_AT_A_SERVER, 'futex', 'nanosleep', 'clock_nanosleep')


@dataclass(frozen=True)
class HangingFrame:
    """Call that never ends, with its cause and its remedy."""

    pattern: str
    """Regex for a call, as ``file:line in function``; folders as in `_FOLDERS`."""
    cause: str
    """Name of the cause of a hanging call, a key of `CAUSES`."""
    reason: str
    """Clause that says why a hanging call never ends."""
    do: str
    """Sentence that names the remedy against a hanging call."""
    example: str
    """Example of a hanging call that the pattern matches."""
    calls: tuple[str, ...] = ()
    """System calls in which a hanging process may wait; empty accepts any.

    One that is unknown is accepted, too."""
    is_pinning: bool = False
    """True if the frame is of the thread that pins batches, and not of a worker."""
    is_of_fork: bool = False
    """True if only a worker that was forked hangs in this call."""
    is_of_any_code: bool = False
    """True if the system call alone identifies the hang, and so must be known."""

    @property
    def regex(self) -> re.Pattern[str]:
        """Compiled pattern of a hanging call."""
        pattern = self.pattern
        for name, folder in _FOLDERS.items():
            pattern = pattern.replace(name, folder)
        return re.compile(pattern)


HANGING_FRAMES = (
    HangingFrame(
        pattern=r'<library>logging/__init__\.py:\d+ in '
        r'(?:acquire|handle|_acquireLock)$',
        calls=('futex',),
        is_of_fork=True,
        cause='worker_deadlock',
        reason='the lock of a logging handler was held while the worker was forked',
        do='Log nothing from a thread while workers start, or start them by spawn: '
        "env_cfg.mp_cfg.mp_start_method='spawn'.",
        example='/usr/lib/python3.11/logging/__init__.py:922 in acquire',
    ),
    HangingFrame(
        pattern=r'<package>(?:grpc|google/cloud|tensorflow/python)/',
        calls=_AT_A_LOCK,
        is_of_fork=True,
        cause='worker_deadlock',
        reason='gRPC does not survive a fork: its threads and locks stay behind',
        do='Open the client inside the worker, at its first sample, or set '
        'GRPC_ENABLE_FORK_SUPPORT=1 before the import.',
        example='/env/lib/python3.11/site-packages/grpc/_channel.py:1178 in _blocking',
    ),
    HangingFrame(
        pattern=r'<package>matplotlib/(?:pyplot\.py:\d+ in (?:show|pause)$'
        r'|backend_bases\.py:\d+ in (?:show|mainloop|start_event_loop)'
        r'|backends/(?:_?backend_(?:tk|gtk|qt|wx|mac)))'
        r'|<library>tkinter/|<package>PyQt\d/'
        r'|<package>(?:mmcv|mmengine|cv2)/.* in (?:imshow|waitKey|show)$',
        calls=_AT_A_WINDOW,
        cause='worker_stuck',
        reason='it opens or draws a window, and there is no screen, or no event loop',
        do="matplotlib.use('Agg') before pyplot is imported, and no imshow or show in "
        'the pipeline.',
        example='/env/lib/python3.11/site-packages/matplotlib/pyplot.py:614 in show',
    ),
    HangingFrame(
        pattern=r'<package>h5py/',
        calls=('futex',),
        is_of_fork=True,
        cause='worker_deadlock',
        reason='an HDF5 file that was opened before the fork is read by several '
        'processes: they share its lock and its position',
        do='Open the file inside the worker, at its first sample, and not in __init__.',
        example='/env/lib/python3.11/site-packages/h5py/_hl/dataset.py:841 in '
        '__getitem__',
    ),
    HangingFrame(
        pattern=r'<package>(?:lmdb/|mmengine/fileio/backends/lmdb_backend\.py)',
        calls=('futex',),
        is_of_fork=True,
        cause='worker_deadlock',
        reason='an LMDB environment that was opened before the fork must not be used '
        'in the child',
        do='Open it inside the worker, at its first sample, with lock=False and '
        'readahead=False.',
        example='/env/lib/python3.11/site-packages/lmdb/cffi.py:1210 in begin',
    ),
    HangingFrame(
        pattern=r'<package>decord/',
        calls=('futex',),
        is_of_fork=True,
        cause='worker_deadlock',
        reason='decord decodes in threads of its own, which a fork does not copy',
        do='decord.VideoReader(..., num_threads=1), opened inside the worker; or '
        'another backend (PyAV, OpenCV).',
        example='/env/lib/python3.11/site-packages/decord/video_reader.py:163 in '
        'get_batch',
    ),
    HangingFrame(
        pattern=r'<library>(?:http/|socket\.py:|ssl\.py:)'
        r'|<package>(?:urllib3|requests|boto3|botocore)/',
        calls=_AT_A_SERVER,
        cause='storage_stalled',
        reason='it waits for a server over the network',
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
        pattern='',
        calls=('write',),
        is_of_any_code=True,
        cause='worker_stuck',
        reason='it writes into a pipe or a terminal that nobody reads from',
        do='Read on what the training prints (a pager such as less stops it), or let '
        'it go to a file.',
        example='/usr/lib/python3.11/logging/__init__.py:1113 in emit',
    ),
    HangingFrame(
        # Python's own threads may be waited for, too
        pattern=r'^(?!.*/(?:threading|queue)\.py:|.*/(?:concurrent|asyncio)/)',
        calls=('futex',),
        is_of_fork=True,
        is_of_any_code=True,
        cause='worker_stuck',
        reason='it waits for a lock or a thread: its own, or one of C code (OpenMP, '
        'OpenCV) that a fork does not copy',
        do='py-spy dump --native --pid N shows whose it is. Of C code: compute nothing '
        'with several threads before workers start (torch.set_num_threads(1), '
        'cv2.setNumThreads(0), OMP_NUM_THREADS=1).',
        example='/opt/project/transforms.py:41 in resize',
    ),
)

_WAITS = re.compile(r'multiprocessing/(?:queues|connection|synchronize)|selectors')
"""Regex for calls in which a thread or worker is idle and waits for work."""


def find_hanging_frame(
    calls: Sequence[str],
    is_pinning: bool = False,
    call: str | None = None,
    is_forked: bool | None = None,
) -> HangingFrame | None:
    """Finds the known hanging call that a thread is in; ``None`` if it is in none.

    It is the innermost call, or the innermost outside of the standard library: what
    another function does is not known by who called it.

    Args:
        calls: The innermost first.
        is_pinning: Whether they are of the thread that pins.
        call: System call that the process waits in; ``None`` where that is unknown.
        is_forked: Whether the process was forked; ``None`` where that is unknown.
    """
    if any(_WAITS.search(call) for call in calls[:3]):
        return None
    outside = next((its for its in calls if not _STANDARD.search(its)), None)
    for row in HANGING_FRAMES:
        if row.is_pinning != is_pinning or (row.is_of_fork and is_forked is False):
            continue
        may_be_unknown = call is None and not row.is_of_any_code
        if row.calls and call not in row.calls and not may_be_unknown:
            continue
        seen = calls[:1] if row.is_of_any_code else (*calls[:1], outside or '')
        if any(row.regex.search(its) for its in seen):
            return row
    return None
