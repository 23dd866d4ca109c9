from __future__ import annotations

import pytest

from fakes.runs import make_evidence, make_host_window, make_interval, make_run
from mmgpu_hooks.judge.figures import HostFigures
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema import HostWindow, RunEvidence


def fold(*windows: HostWindow | None) -> HostFigures:
    records = [make_interval(i, host=window) for i, window in enumerate(windows)]
    host = Run(RunEvidence('x', make_run(), tuple(records))).host
    assert host is not None
    return host


def test_pressure_is_weighted_by_seconds_and_leaves_the_warm_up_out():
    records = (
        make_interval(0, host=make_host_window(cpu_pressure_pct=99.0)),
        make_interval(1, iterations=10, host=make_host_window(cpu_pressure_pct=10.0)),
        make_interval(2, iterations=30, host=make_host_window(cpu_pressure_pct=50.0)),
    )
    host = Run(RunEvidence('x', make_run(), records)).host
    assert host is not None
    assert host.cpu_pressure_pct == pytest.approx(40.0)
    assert host.seconds == pytest.approx(12.0)


def test_sums_are_of_the_whole_run_over_what_tells():
    host = fold(
        make_host_window(throttled_s=3.0, swap_in_bytes=5),
        make_host_window(throttled_s=None, swap_in_bytes=None),
        make_host_window(throttled_s=0.0, swap_in_bytes=2),
    )
    assert host.throttled_s == pytest.approx(3.0)
    # of the 12 s that tell it, not of the 18 s of the run
    assert host.throttled_pct == pytest.approx(25.0)
    assert (host.swap_in_bytes, host.swap_out_bytes) == (7, 0)


def test_extremes_are_of_the_whole_run():
    host = fold(
        make_host_window(ram_available_bytes=1, shm_free_bytes=9, open_files=4),
        make_host_window(ram_available_bytes=5, shm_free_bytes=2, open_files=7),
        make_host_window(ram_available_bytes=None, open_files=None),
    )
    assert (host.ram_available_bytes, host.shm_free_bytes) == (1, 2)
    assert host.open_files == 7


def test_what_no_interval_tells_stays_unknown():
    host = fold(HostWindow(), HostWindow())
    assert (host.cpu_pressure_pct, host.throttled_pct) == (None, None)
    assert (host.swap_in_bytes, host.open_files) == (None, None)


def test_a_run_of_older_evidence_has_no_host():
    assert Run(make_evidence(3)).host is None
