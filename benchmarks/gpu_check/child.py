"""Starts Python code in a child process with this checkout on its path."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def start_python(
    code: str,
    *words: str,
    environ: Mapping[str, str] | None = None,
    before: Sequence[str] = (),
) -> subprocess.Popen[str]:
    """Starts Python code in a child process and returns its ``Popen`` object.

    Args:
        code: What to run; its answer is a JSON object, which it prints last.
        words: Its arguments.
        environ: To add to the environment.
        before: A command that starts it.
    """
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get('PYTHONPATH'))))
    return subprocess.Popen(
        [*before, sys.executable, '-c', code, *words],
        env={**os.environ, 'PYTHONPATH': path, **(environ or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def read_answer(process: subprocess.Popen[str], timeout_s: float = 180.0) -> Any:
    """Waits for a child process and returns the JSON value that it printed.

    Raises:
        RuntimeError: If it failed; the message is the end of what it said.
        subprocess.TimeoutExpired: If it hangs; it is killed.
    """
    try:
        out, error = process.communicate(timeout=timeout_s)
    finally:
        process.kill()
    if process.returncode:
        raise RuntimeError(' '.join(error.split())[-200:])
    # what MMEngine says may stand before it
    return json.loads('{' + f'\n{out}'.rpartition('\n{')[2])
