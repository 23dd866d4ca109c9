"""Runs ``mmgpu`` in forked processes, which saves the seconds for imports."""

from __future__ import annotations

import contextlib
import functools
import os
import runpy
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from mmgpu_hooks.commands.main import main

HUNG = -signal.SIGKILL


def run_forked(
    words: Sequence[str],
    *,
    stdout: str = 'file',
    first: Callable[[], Any] = lambda: None,
    script: Path | None = None,
    limit_s: float = 20.0,
) -> tuple[int, str, str]:
    """Runs ``mmgpu`` with the given words in a forked process.

    Args:
        words: Its arguments.
        stdout: ``file``, ``closed`` (as ``>&-`` does), ``full`` (``/dev/full``) or
            ``unread`` (a pipe whose reader has gone).
        first: Called in the new process before.
        script: Run it with these words, in place of ``mmgpu``.
        limit_s: After which it is killed.

    Returns:
        The exit code (``HUNG`` after the limit), standard output and standard error.
    """
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, name) for name in ('out', 'err')]
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')  # of other threads, which do nothing here
            pid = os.fork()
        if not pid:
            run = functools.partial(_run, words, script, first)
            _be_the_command(run, stdout, *paths)
        end_s = time.monotonic() + limit_s
        while True:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                break
            if time.monotonic() > end_s:
                os.kill(pid, signal.SIGKILL)
                end_s += limit_s
            time.sleep(0.005)
        out, err = (path.read_text(errors='replace') for path in paths)
    return os.waitstatus_to_exitcode(status), out, err


def _be_the_command(
    run: Callable[[], Any], stdout: str, out: Path, err: Path
) -> NoReturn:
    code: Any = 1
    try:
        out.touch()
        for path, descriptor in (
            ('/dev/full' if stdout == 'full' else out, 1),
            (err, 2),
        ):
            opened = os.open(path, os.O_WRONLY | os.O_CREAT)
            os.dup2(opened, descriptor)
            os.close(opened)
        if stdout == 'unread':
            reader, writer = os.pipe()
            os.dup2(writer, 1)
            os.close(reader)
        sys.stderr = open(2, 'w', buffering=1, closefd=False)  # noqa: SIM115
        sys.stdout = open(1, 'w', closefd=False)  # noqa: SIM115
        if stdout == 'closed':
            # what Python makes of a descriptor that is closed when it starts
            os.close(1)
            sys.stdout = None
        warnings.simplefilter('ignore')
        code = run()
        if sys.stdout is not None:
            sys.stdout.flush()
    except BaseException:  # noqa: BLE001  # as Python does at its end
        with contextlib.suppress(BaseException):
            traceback.print_exc()
            sys.stderr.flush()
    finally:
        os._exit(code if isinstance(code, int) else 1)


def _run(words: Sequence[str], script: Path | None, first: Callable[[], Any]) -> Any:
    first()
    try:
        if script is None:
            return main(list(words))
        sys.argv = [str(script), *words]
        runpy.run_path(str(script), run_name='__main__')
    except SystemExit as stop:
        return stop.code
    return 0
