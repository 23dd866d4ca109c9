"""Finds and judges the log of a training without GPUEfficiencyHook."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from mmgpu_hooks.judge.framework_log import judge_framework_log
from mmgpu_hooks.schema.framework_log import find_framework_logs, read_framework_log
from mmgpu_hooks.schema.judged import FirstAnswer
from mmgpu_hooks.schema.run_folder import EvidenceError, read_run_folder


def read_first_answer(folders: Sequence[Path]) -> FirstAnswer | None:
    """Judges a folder's newest training log, if its newest run has no evidence file.

    Returns:
        ``None`` of several folders, and of one with evidence or without such a log.

    Raises:
        EvidenceError: If a log cannot be read.
    """
    if len(folders) != 1:
        return None
    (folder,) = folders
    logs = list[Path]()
    # a folder that cannot be read is refused where its runs are read
    with contextlib.suppress(OSError):
        logs = find_framework_logs(folder)
    if not logs:
        return None
    older: str | None = None
    if not folder.is_file():
        # MMCV's logs are no run to it
        with contextlib.suppress(EvidenceError):
            files = read_run_folder(folder)
            if files.evidence is not None:
                return None
            found = (path for path in files.older_runs if path.is_file())
            older = next((str(path.parent) for path in found), None)
    for path in logs:
        log = read_framework_log(path)
        if log.lines:
            return judge_framework_log(log, older)
    return None
