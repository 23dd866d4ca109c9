"""Ends child processes together with all their descendants."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from typing import Any

from mmgpu_hooks.measure.clock import monotonic_s

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_END_S = 1.0
"""Longest wait in seconds for killed descendants of a process to end."""


def end_child(child: subprocess.Popen[bytes], within_s: float = 5.0) -> None:
    """Kills a child with all its descendants, and waits until they are gone.

    What the kernel cannot end within seconds is left to it.

    Args:
        child: The leader of a session of its own (``start_new_session``).
        within_s: Seconds to wait at most. Defaults to 5.
    """
    import psutil

    # held first, so that nothing starts another process meanwhile
    signal_group(child, signal.SIGSTOP)
    family = []
    with contextlib.suppress(psutil.Error, OSError):  # a host may have no /proc
        family = psutil.Process(child.pid).children(recursive=True)
    signal_group(child, signal.SIGKILL)
    for process in family:
        with contextlib.suppress(psutil.Error):
            process.kill()
    deadline_s = monotonic_s() + within_s
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(within_s)
    while any(map(_is_alive, family)) and monotonic_s() < deadline_s:
        time.sleep(0.01)


def signal_group(child: subprocess.Popen[bytes], number: int) -> None:
    """Sends a signal to a child process and all processes of its process group."""
    # gone, or of another user: a program that becomes one
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)


def _is_alive(process: Any) -> bool:
    import psutil

    try:
        # a zombie is dead; in a container no parent may collect it
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def die_with_parent(parent: int) -> None:
    """Has the kernel kill this process when its parent process ends.

    A child that is held would not notice the end of its parent. Linux only.

    Args:
        parent: Process id.

    Raises:
        SystemExit: If the parent is gone already.
    """
    if (prctl := _find_prctl()) is not None:
        forking = os.getpid()

        def note() -> None:
            nonlocal forking
            forking = os.getpid()

        def ask() -> None:
            prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
            # a parent that was gone before is none to the kernel
            if os.getppid() != forking:
                os.kill(os.getpid(), signal.SIGKILL)

        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        os.register_at_fork(before=note, after_in_child=ask)
    if os.getppid() != parent:
        raise SystemExit('the process that started this one is gone')


def adopt_orphans() -> None:
    """Makes this process the parent of descendants whose parent ends (child subreaper).

    Linux only. :func:`end_descendants` finds them then.
    """
    if (prctl := _find_prctl()) is not None:
        prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_descendants() -> None:
    """Kills all descendants of this process, of any session or process group."""
    import psutil

    deadline_s = monotonic_s() + _END_S
    while _has_children() and monotonic_s() < deadline_s:
        family = []
        with contextlib.suppress(psutil.Error, OSError):  # a host may have no /proc
            family = psutil.Process().children(recursive=True)
        if not any(map(_is_alive, family)):
            return
        for process in family:
            with contextlib.suppress(psutil.Error):
                process.kill()
        # what one of them started meanwhile is ours by then
        time.sleep(0.01)


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    except AttributeError:  # macOS
        pass
    return True


def _find_prctl() -> Any:
    return getattr(ctypes.CDLL(None), 'prctl', None)
