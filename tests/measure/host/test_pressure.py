from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from mmgpu_hooks.measure.proc import KeptFile, fold_pressure_pct, parse_pressure

TEXT = b"""some avg10=0.07 avg60=0.31 avg300=15.13 total=329505311
full avg10=0.00 avg60=0.00 avg300=0.00 total=7
"""


def test_the_total_of_some_is_taken_in_seconds():
    assert parse_pressure(TEXT) == 329.505311
    # before Linux 5.13 the CPU's file had no line for all tasks
    assert parse_pressure(TEXT.splitlines()[0]) == 329.505311


@pytest.mark.parametrize(
    'text',
    [
        b'',
        b'full avg10=0.00 total=7\n',
        b'some avg10=0.07 total=\n',
        b'some avg10=0.07\n',
        b'some total=many\n',
        b'\xff\xfe some',
    ],
)
def test_other_text_is_an_error(text: bytes):
    with pytest.raises(ValueError, match=r'expected|invalid literal'):
        parse_pressure(text)


@pytest.mark.parametrize(
    ('before_s', 'after_s', 'duration_s', 'pct'),
    [
        (10.0, 12.5, 10.0, 25.0),
        (10.0, 10.0, 10.0, 0.0),
        (10.0, 20.2, 10.0, 100.0),  # the kernel's rounding, not our bound
        (10.0, 9.0, 10.0, None),
        (10.0, 12.0, 0.0, None),
    ],
)
def test_share_of_a_window(before_s, after_s, duration_s, pct):
    assert fold_pressure_pct(before_s, after_s, duration_s) == pct


BUSY = """
import os
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
print('busy', flush=True)
while True:
    pass
"""


@pytest.mark.skipif(not Path('/proc/pressure/cpu').exists(), reason='needs pressure')
def test_pressure_rises_when_more_run_than_there_are_cores():
    file = KeptFile(Path('/proc/pressure/cpu'))
    command = [sys.executable, '-c', BUSY]
    hogs = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for hog in hogs:
            assert hog.stdout is not None and hog.stdout.readline() == b'busy\n'
        before_s, began_s = parse_pressure(file.read()), time.perf_counter()
        time.sleep(0.3)
        after_s, ended_s = parse_pressure(file.read()), time.perf_counter()
    finally:
        file.close()
        for hog in hogs:
            hog.kill()
            hog.communicate()
    # two tasks shared one core: one of them always waited, others ran elsewhere
    pct = fold_pressure_pct(before_s, after_s, ended_s - began_s)
    assert pct is not None and pct > 25.0
