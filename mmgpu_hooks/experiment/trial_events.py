"""What a trial's process has told, its end included, whether it said so or not."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from mmgpu_hooks.experiment.trial_channel import TrialReader
from mmgpu_hooks.experiment.trial_failure import classify_exit

_TAIL_BYTES = 4096


def read_events(
    process: subprocess.Popen[Any], reader: TrialReader, log: Path, wait_s: float
) -> list[dict[str, Any]]:
    """What it told since; one that is gone without a word tells ``over`` all the same.

    Args:
        process: Of the trial.
        reader: Of what it tells.
        log: What it prints goes there.
        wait_s: For something to tell, at most.
    """
    code = process.poll()
    # looked at first: what it told before its end is then in the pipe
    events = reader.read_events(0 if code is not None else wait_s)
    if code is not None and not any(e['event'] == 'over' for e in events):
        status, line = classify_exit(code, _read_tail(log))
        events.append({'event': 'over', 'status': status, 'error': line})
    return events


def _read_tail(log: Path) -> list[str]:
    with log.open('rb') as file:
        file.seek(max(file.seek(0, os.SEEK_END) - _TAIL_BYTES, 0))
        return file.read().decode('utf-8', 'replace').splitlines()
