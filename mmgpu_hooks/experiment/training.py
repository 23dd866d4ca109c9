"""Runs one real training in a process of its own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Callable

LOG_NAME = 'training.log'


class TrainingError(Exception):
    """The training could not be run to its end; the message is one sentence."""


def find_train_script() -> Path:
    """MMDetection's own ``tools/train.py``, out of the installed wheel.

    Raises:
        TrainingError: If MMDetection is not installed, or without its tools.
    """
    # found, not imported: importing MMDetection takes seconds and torch
    spec = importlib.util.find_spec('mmdet')
    if spec is None or spec.origin is None:
        raise TrainingError(
            'expected MMDetection to train with, found no package mmdet; install it '
            '(make setup does).'
        )
    script = Path(spec.origin).parent / '.mim' / 'tools' / 'train.py'
    if not script.is_file():
        raise TrainingError(
            f'expected the tools of MMDetection in {script}, found nothing; install '
            'mmdet from its wheel.'
        )
    return script


def run_training(
    config: Path,
    work_dir: Path,
    *,
    on_line: Callable[[str], None],
    environ: Mapping[str, str] | None = None,
) -> None:
    """Train a config as a user would, and wait for the end.

    Args:
        config: The config to train.
        work_dir: Where the run goes; the whole output goes to ``training.log`` in it.
        on_line: Called with each line the training prints.
        environ: Environment variables to add.

    Raises:
        TrainingError: If the training fails; its last lines are in the message.
    """
    command = [sys.executable, str(find_train_script()), str(config)]
    command += ['--work-dir', str(work_dir)]
    work_dir.mkdir(parents=True, exist_ok=True)
    last: list[str] = []
    log_path = work_dir / LOG_NAME
    with (
        log_path.open('w', encoding='utf-8') as log,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding='utf-8',
            errors='replace',
            env={**os.environ, 'PYTHONUNBUFFERED': '1', **(environ or {})},
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                log.write(line)
                last = [*last[-4:], line.rstrip()]
                on_line(line.rstrip('\n'))
        except BaseException:
            process.terminate()
            raise
    if process.returncode != 0:
        raise TrainingError(
            f'training {config} ended with exit code {process.returncode}; its last '
            f'lines were:\n' + '\n'.join(last) + f'\n(all of it: {log_path})'
        )
