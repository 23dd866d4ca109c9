"""Asks the adviser: a child process that judges the run of its parent and answers once.

A package of its own, above everything that judges and edits configs, below the hook
that asks: so the hook imports no command, and no command a hook. The child is started
by ``exec`` in a fresh interpreter: a training has threads and a CUDA context, which a
fork would break, and must not import what MMEngine's configs import. It sees no card.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec

from mmgpu_hooks.experiment.children import end_child, signal_group
from mmgpu_hooks.measure.memory import read_free_bytes
from mmgpu_hooks.schema.judged import RunAdvice
from mmgpu_hooks.schema.run_folder import read_run_folder

LIMIT_S = 10.0
"""The child is killed then."""
_GONE_WITHIN_S = 1.0
"""Once killed, the child is waited for so long; the kernel may take longer."""
LEAST_FREE_BYTES = 2**30
"""Below it no child is started: a training that has ended well is not to be killed for
the memory of its advice."""

_CHILD = (
    'import atexit, gc, os, sys; '
    'gc.set_threshold(100_000); '
    'sys.path[:] = sys.argv[3:]; '
    'from mmgpu_hooks.adviser.child import main; '
    'main(sys.argv[1], int(sys.argv[2])); '
    'atexit._run_exitfuncs(); '
    'os._exit(0)'
)
"""The path of modules is set before anything is imported. It is the parent's alone:
a script's own folder is in it, and the current one, which Python adds, may not be.
Collecting garbage would take a tenth of the time of so short a process, and freeing all
that was imported another."""


def ask_adviser(evidence: Path, limit_s: float = LIMIT_S) -> RunAdvice:
    """Have a child process judge a run that is over, and write its recommended config.

    Args:
        evidence: Of rank 0, complete.
        limit_s: Seconds until the child and all that it started are killed.

    Returns:
        Its answer; where there is none, the reason. Nothing is raised for what the
        child does, or where it cannot be started; Ctrl-C ends the child alone.
    """
    if read_run_folder(evidence).config_copy is None:
        return RunAdvice(reason="no copy of the config in the run's folder")
    free = read_free_bytes()
    if free is not None and free < LEAST_FREE_BYTES:
        return RunAdvice(reason='less than 1 GiB of memory is free')
    try:
        child = _start(evidence)
    except (OSError, ValueError) as error:
        said = getattr(error, 'strerror', None) or error
        return RunAdvice(reason=f'no process could be started ({said})')
    try:
        answer, _ = child.communicate(timeout=limit_s)
        return msgspec.json.decode(answer, type=RunAdvice)
    except subprocess.TimeoutExpired:
        return RunAdvice(reason=f'it took longer than {limit_s:g} s')
    except KeyboardInterrupt:
        # the training is completed, and goes on as one without advice
        return RunAdvice(reason='Ctrl-C ended the process that writes it')
    except msgspec.DecodeError:
        said = 'its process gave an answer that cannot be read'
        if child.returncode:
            said = f'its process ended with exit code {child.returncode}'
        return RunAdvice(reason=said)
    finally:
        if child.returncode is None:
            end_child(child, _GONE_WITHIN_S)
        else:
            # what it left behind if it died; its number stays that of its own group,
            # never of ours, while anything of it is there
            signal_group(child, signal.SIGKILL)
        if child.stdout is not None:
            child.stdout.close()


def _start(evidence: Path) -> subprocess.Popen[bytes]:
    words = [str(evidence), str(os.getpid()), *map(str, sys.path)]
    return subprocess.Popen(
        [sys.executable, '-c', _CHILD, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={
            **os.environ,
            'CUDA_VISIBLE_DEVICES': '',
            # ROCm ignores an empty value
            'HIP_VISIBLE_DEVICES': '-1',
            # small arrays: threads would only be started
            'OMP_NUM_THREADS': '1',
            'OPENBLAS_NUM_THREADS': '1',
        },
        # one signal ends it with its children, and Ctrl-C is for us alone
        start_new_session=True,
    )
