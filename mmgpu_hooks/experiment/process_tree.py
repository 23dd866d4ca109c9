"""A training and all its workers: ended or held together, none left behind."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any, Callable

from mmgpu_hooks.measure.clock import monotonic_s

_PR_SET_PDEATHSIG = 1
_GONE_WITHIN_S = 5.0
_STOPS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def stops_put_off() -> Iterator[None]:
    """Ctrl-C and a plain ``kill`` come at the end of the block, and not within it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in _STOPS}
    # one that is ignored stays so, and one that is not Python's could not come back
    before = {n: h for n, h in before.items() if h not in (signal.SIG_IGN, None)}
    try:
        for number in before:
            signal.signal(number, lambda number, frame: came.append(number))
        yield
    finally:
        # Ctrl-C last: once it is back, it may end this very block
        for number, handler in reversed(before.items()):
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


def read_host_cpu_s() -> float:
    """CPU seconds that everything on the host has used so far."""
    import psutil

    times = psutil.cpu_times()._asdict()
    # guests are in the user's account already
    idle = ('idle', 'iowait', 'guest', 'guest_nice')
    return math.fsum(seconds for name, seconds in times.items() if name not in idle)


class ProcessTree:
    """A process that leads a session of its own, with its descendants.

    Args:
        leader: Started with ``start_new_session=True``.
    """

    def __init__(self, leader: subprocess.Popen[Any]) -> None:
        self._leader = leader

    def hold(self) -> None:
        """Stop every process of it in its tracks, until `resume`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it run on from where it was held."""
        self._signal(signal.SIGCONT)

    def read_cpu_s(self) -> float:
        """CPU seconds used so far, by the leader, its descendants and those it had."""
        import psutil

        total_s = 0.0
        with contextlib.suppress(psutil.Error):
            leader = psutil.Process(self._leader.pid)
            times = leader.cpu_times()
            # what ended and was waited for is in the leader's own account
            total_s += math.fsum(times[:4])
            for process in leader.children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    total_s += math.fsum(process.cpu_times()[:2])
        return total_s

    def kill(self) -> None:
        """End all of it at once, and wait until it is gone; never raises for one gone.

        Descendants that left the session are found as children of children. What the
        kernel cannot end within seconds is left to it.
        """
        with stops_put_off():
            import psutil

            # held first, so that nobody starts another one meanwhile
            self.hold()
            found = self._members(psutil)
            self._signal(signal.SIGKILL)
            for process in found:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            # without a limit it would wait for ever where Ctrl-C came within `poll`
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._leader.wait(_GONE_WITHIN_S)
            deadline_s = monotonic_s() + _GONE_WITHIN_S
            while any(map(_is_alive, found)) and monotonic_s() < deadline_s:
                time.sleep(0.01)

    def _members(self, psutil: Any) -> list[Any]:
        """The leader's descendants, and whoever of its group outlived it."""
        pid, found = self._leader.pid, []
        with contextlib.suppress(psutil.Error):
            found = psutil.Process(pid).children(recursive=True)
        known = {process.pid for process in found} | {pid}
        for other in psutil.pids():
            with contextlib.suppress(psutil.Error, OSError):
                if other not in known and os.getpgid(other) == pid:
                    found.append(psutil.Process(other))
        return found

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._leader.pid, number)


def _is_alive(process: Any) -> bool:
    import psutil

    try:
        # a zombie is dead; in a container there may be nobody to collect it
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def die_with_parent(parent_pid: int) -> None:
    """Have this process and those it forks killed when their parent is.

    A held worker would not notice the end of its training. Does nothing where the
    kernel is not Linux.

    Raises:
        SystemExit: If the parent is gone already.
    """
    ask = _ask_for_death_signal()
    if ask is not None:
        ask()
        os.register_at_fork(after_in_child=ask)
    if os.getppid() != parent_pid:
        raise SystemExit('the process that started this trial is gone')


def _ask_for_death_signal() -> Callable[[], Any] | None:
    prctl = getattr(ctypes.CDLL(None), 'prctl', None)
    if prctl is None:
        return None
    return lambda: prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
