"""Tests the progress lines of a resumed training that loads batches to skip them."""

from __future__ import annotations

from mmgpu_hooks.hooks.resume_source import ResumeProgress


class Log:
    """Fake logger that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, line: str) -> None:
        self.lines.append(line)


def test_a_resume_is_said_after_ten_seconds_and_once_a_minute():
    log, now_s = Log(), [0.0]
    progress = ResumeProgress(log, 1000, lambda: now_s[0])
    for left in range(1000, 0, -1):
        progress.note(left)
        now_s[0] += 0.125
    assert log.lines == [
        'GPUEfficiencyHook: resuming has loaded 80 of 1000 batches only to skip them, '
        "in 10.0 s; 115.0 s still. optimize='resume' skips them without loading.",
        'GPUEfficiencyHook: resuming has loaded 560 of 1000 batches only to skip them, '
        "in 70.0 s; 55.0 s still. optimize='resume' skips them without loading.",
    ]


def test_a_short_resume_is_not_worth_a_line():
    log = Log()
    progress = ResumeProgress(log, 3, lambda: 0.0)
    for left in (3, 2, 1):
        progress.note(left)
    assert log.lines == []
