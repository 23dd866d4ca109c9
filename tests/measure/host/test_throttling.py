from __future__ import annotations

from pathlib import Path

import pytest

from fakes.clock import HandClock
from mmgpu_hooks.measure.cgroup import ThrottleMeter, parse_throttled_s, states_no_quota

V2 = '31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw'


@pytest.mark.parametrize(
    ('version', 'text', 'seconds'),
    [
        (1, b'nr_periods 4\nnr_throttled 2\nthrottled_time 2740115021\n', 2.740115021),
        (2, b'usage_usec 9\nnr_throttled 2\nthrottled_usec 2740115\n', 2.740115),
        (2, b'usage_usec 9\nuser_usec 5\nsystem_usec 4\n', None),  # the root
        (1, b'', None),
    ],
)
def test_each_version_counts_in_its_own_unit(version, text, seconds):
    assert parse_throttled_s(text, version) == seconds


def test_a_figure_that_is_no_number_is_an_error():
    with pytest.raises(ValueError, match='invalid literal'):
        parse_throttled_s(b'throttled_usec much\n', 2)


def test_version_2_leaves_out_the_root_and_what_cannot_be_read(tmp_path: Path):
    own, top = tmp_path / 'proc' / 'self', tmp_path / 'sys' / 'fs' / 'cgroup'
    own.mkdir(parents=True)
    (top / 'pod' / 'job').mkdir(parents=True)
    (own / 'cgroup').write_text('0::/pod/job\n')
    (own / 'mountinfo').write_text(V2)
    (top / 'cpu.stat').write_text('usage_usec 9\n')
    (top / 'pod' / 'cpu.stat').write_text('throttled_usec torn\n')
    stat = top / 'pod' / 'job' / 'cpu.stat'
    stat.write_text('usage_usec 5\nthrottled_usec 1000000\n')
    meter = ThrottleMeter(tmp_path / 'proc', tmp_path / 'sys')
    assert not meter.is_empty
    stat.write_text('usage_usec 5\nthrottled_usec 1250000\n')
    assert meter.read() == 0.25
    stat.write_text('usage_usec 5\n')
    with pytest.raises(ValueError, match='no more'):
        meter.read()
    meter.close()


def test_a_group_without_a_quota_is_looked_at_now_and_then(tmp_path: Path):
    own, top = tmp_path / 'proc' / 'self', tmp_path / 'sys' / 'fs' / 'cgroup'
    own.mkdir(parents=True)
    (top / 'pod' / 'job').mkdir(parents=True)
    (own / 'cgroup').write_text('0::/pod/job\n')
    (own / 'mountinfo').write_text(V2)
    free, bound = top / 'pod', top / 'pod' / 'job'
    (free / 'cpu.max').write_text('max 100000\n')
    (bound / 'cpu.max').write_text('50000 100000\n')
    for group in (free, bound):
        (group / 'cpu.stat').write_text('throttled_usec 1000000\n')
    clock = HandClock()
    meter = ThrottleMeter(tmp_path / 'proc', tmp_path / 'sys', clock)

    def throttle(group: Path, time_us: int, wait_s: float) -> float | None:
        (group / 'cpu.stat').write_text(f'throttled_usec {time_us}\n')
        clock.turn(wait_s)
        return meter.read()

    assert throttle(bound, 1_250_000, 10.0) == 0.25
    # it was given a quota: what it was held back is counted when that is seen
    assert throttle(free, 1_500_000, 10.0) == 0.0
    assert throttle(free, 2_000_000, 10.0) == 1.0
    assert throttle(free, 2_500_000, 1.0) == 0.5
    # moved to another host
    assert throttle(bound, 1_000_000, 1.0) is None
    meter.close()


@pytest.mark.parametrize(
    ('version', 'text', 'is_free'),
    [
        (1, '-1\n', True),
        (1, '50000\n', False),
        (2, 'max 100000\n', True),
        (2, '50000 100000\n', False),
        (2, '', False),
        (2, None, False),
    ],
)
def test_only_a_group_that_says_so_has_no_quota(tmp_path, version, text, is_free):
    name = 'cpu.max' if version == 2 else 'cpu.cfs_quota_us'
    if text is not None:
        (tmp_path / name).write_text(text)
    assert states_no_quota(tmp_path, version) is is_free


def test_without_groups_there_is_nothing_to_read(tmp_path: Path):
    meter = ThrottleMeter(tmp_path, tmp_path)
    assert meter.is_empty
    assert meter.read() is None
    meter.close()
