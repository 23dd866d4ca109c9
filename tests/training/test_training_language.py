"""Tests in which language a real training writes its log, by the locale's encoding."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from training.detection import environ

TRAIN = """\
import sys
from training.toy import build_runner, log_of, train
runner = train(build_runner(sys.argv[1], iterations=24))
"""


@pytest.mark.parametrize(
    ('locale', 'said'), [('C', '  verdict    '), ('C.UTF-8', '  结论')]
)
def test_a_log_file_without_room_for_chinese_is_in_english(
    tmp_path: Path, locale: str, said: str
):
    # Python would take UTF-8 in the locale C
    plain = {'PYTHONUTF8': '0', 'PYTHONCOERCECLOCALE': '0', 'LC_ALL': locale}
    done = subprocess.run(
        [sys.executable, '-c', TRAIN, str(tmp_path / 'run')],
        env={**environ(), **plain, 'MMGPU_LANG': 'zh'},
        capture_output=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (log,) = (tmp_path / 'run').rglob('*.log')
    written = log.read_bytes()
    assert written.isascii() == (locale == 'C')
    assert said in written.decode()
    # no letter was written as an escape, in file or console
    assert b'\\u' not in written + done.stdout + done.stderr
