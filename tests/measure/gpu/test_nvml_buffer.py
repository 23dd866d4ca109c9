from __future__ import annotations

from collections.abc import Iterator

import pytest

from fakes.clock import HandClock
from fakes.nvml import FakeGpu, FakeNvml
from mmgpu_hooks.measure.gpu import SAMPLE_S, Gpu, open_gpu
from mmgpu_hooks.measure.gpu_sampler import GpuFold
from mmgpu_hooks.measure.gpu_util import UtilSpan, fold_buffer

SECOND = 1_000_000
START = 1_700_000_000 * SECOND
"""Wall clock in microseconds when the GPU is opened."""


class Box:
    """A GPU whose buffer holds what a test puts in, and both clocks."""

    def __init__(self, fake: FakeNvml) -> None:
        self._fake = fake
        self.clock, self.wall = HandClock(50.0), HandClock(START / SECOND)
        self.entries: list[tuple[int, int]] = []
        self.kind = 1
        self.util: tuple[int, ...] = (7,)

    def open(self) -> Gpu:
        self.write()
        gpu = open_gpu(index=0, environ={}, clock=self.clock, wall=self.wall)
        assert isinstance(gpu, Gpu), gpu
        self.gpu = gpu
        return gpu

    def put(self, *entries: tuple[float, int]) -> None:
        """Add samples; seconds since the opening and per cent."""
        self.entries += [(START + round(at * SECOND), value) for at, value in entries]
        self.write()

    def write(self, **fail: tuple[int, ...]) -> None:
        values = ' '.join(f'{stamp} {value}' for stamp, value in self.entries)
        lines = [f'samples {values}', f'sampletype {self.kind}']
        self._fake.set(FakeGpu(more=lines, util=self.util, fail=fail))

    def turn(self, seconds: float, *, wall: float | None = None) -> None:
        self.clock.turn(seconds)
        self.wall.turn(seconds if wall is None else wall)

    def look(self) -> list[tuple[float, float]] | None:
        spans = self.gpu.read_sample().spans
        return None if spans is None else [(span.seconds, span.pct) for span in spans]

    def reason(self) -> str:
        return self.gpu.missed['util_buffer'].reason


@pytest.fixture
def box(fake_nvml: FakeNvml) -> Iterator[Box]:
    box = Box(fake_nvml)
    yield box
    box.gpu.close()


def test_a_sample_stands_for_the_time_since_the_one_before():
    spans, last, garbage = fold_buffer(
        [(1_200_000, 0), (1_700_000, 80)], 1_000_000, 2_000_000
    )
    assert spans == (UtilSpan(0.2, 0.0), UtilSpan(0.5, 80.0))
    assert (last, garbage) == (1_700_000, None)


def test_the_first_sample_of_all_stands_for_nothing_known():
    assert fold_buffer([(1_000_000, 50)], None, 1_100_000).spans == ()
    spans, last, _ = fold_buffer([(1_000_000, 50), (1_500_000, 60)], None, 1_600_000)
    assert (spans, last) == ((UtilSpan(0.5, 60.0),), 1_500_000)


def test_what_was_seen_is_not_counted_again():
    seen = [(1_000_000, 50), (1_200_000, 60)]
    assert fold_buffer(seen, 1_200_000, 1_300_000) == ((), 1_200_000, None)


def test_a_gap_is_not_filled_by_the_sample_behind_it():
    spans, last, _ = fold_buffer(
        [(9_000_000, 99), (9_200_000, 10)], 1_000_000, 9_300_000
    )
    assert (spans, last) == ((UtilSpan(0.2, 10.0),), 9_200_000)


@pytest.mark.parametrize(
    ('entries', 'spans', 'words'),
    [
        (
            [(1_200_000, 101), (1_400_000, 20)],
            (UtilSpan(0.2, 20.0),),
            'reported 101 %',
        ),
        (
            [(1_400_000, 20), (1_200_000, 40)],
            (UtilSpan(0.2, 40.0), UtilSpan(0.2, 20.0)),
            'out of order',
        ),
        (
            [(1_200_000, 40), (9_000_000, 20)],
            (UtilSpan(0.2, 40.0),),
            'of the future',
        ),
        ([(1_200_000, 40), (1_200_000, 60)], (UtilSpan(0.2, 40.0),), None),
    ],
)
def test_garbage_is_dropped_and_said(entries, spans, words):
    folded = fold_buffer(entries, 1_000_000, 1_500_000)
    assert folded.spans == spans
    assert (words is None) is (folded.garbage is None)
    assert words is None or words in str(folded.garbage)


def test_the_buffer_is_read_from_the_opening_on(box: Box):
    box.put((-0.3, 100), (-0.1, 100))  # before us: not ours
    box.open()
    box.put((0.1, 0), (0.4, 90))
    box.turn(0.5)
    sample = box.gpu.read_sample()
    assert sample.spans == (UtilSpan(0.2, 0.0), UtilSpan(0.3, 90.0))
    assert (sample.util_pct, sample.next_look_s) == (None, SAMPLE_S)
    box.put((0.5, 30))
    box.turn(0.2)
    assert box.look() == [(0.1, 30.0)]
    box.turn(0.3)
    assert box.look() == []
    assert 'util_buffer' not in box.gpu.not_offered
    assert box.gpu.unsupported == {}
    assert box.gpu.missed == {}


def test_an_empty_buffer_is_polled_until_it_speaks(box: Box):
    box.open()
    box.turn(1.0)
    sample = box.gpu.read_sample()
    assert (sample.spans, sample.util_pct, sample.next_look_s) == (None, 7.0, None)
    box.put((0.8, 40), (0.9, 40))
    box.turn(1.0)
    assert box.look() is None  # the first one after a start
    box.put((1.1, 50), (2.0, 60))
    box.turn(0.1)
    assert box.look() == [(pytest.approx(0.2), 50.0), (pytest.approx(0.9), 60.0)]


def test_what_the_buffer_is_silent_about_is_polled(box: Box):
    box.put((-0.1, 40))
    box.open()
    box.util = (0,)
    box.put((0.1, 50))
    spans: list[tuple[float, float]] = []
    for _ in range(20):
        box.turn(0.2)
        spans += box.look() or []
    box.put((3.9, 90), (4.1, 80))
    box.turn(0.2)
    spans += box.look() or []
    # 0.2 s at 50 %, 3.9 s at 0 %, the rest up to the newest sample at 80 %
    assert sum(seconds for seconds, _ in spans) == pytest.approx(4.2)
    assert sum(seconds for seconds, pct in spans if not pct) == pytest.approx(3.9)
    assert [pct for _, pct in spans if pct] == [50.0, 80.0]


@pytest.mark.parametrize(
    ('busy_s', 'idle_s'), [(0.2, 0.2), (0.5, 1.5), (1.0, 3.0), (3.0, 1.0)]
)
@pytest.mark.parametrize('period_s', [1 / 6, 1.0])
def test_idle_stretches_count_where_the_buffer_goes_quiet(
    box: Box, busy_s: float, idle_s: float, period_s: float
):
    wave_s = busy_s + idle_s

    def is_busy(at_s: float) -> bool:
        return at_s % wave_s < busy_s

    box.put((-0.1, 100))
    box.open()
    fold, now_s, kept_s, wait_s = GpuFold(), 0.0, 0.0, 0.2
    for _ in range(200):
        box.turn(wait_s)
        now_s += wait_s
        while kept_s + period_s <= now_s:
            kept_s += period_s
            # all of a period at most is what a sample looks back by
            ticks = [kept_s - period_s * i / 20 for i in range(20)]
            share = sum(map(is_busy, ticks)) / len(ticks)
            if share:
                box.entries = box.entries[-30:]
                box.put((kept_s, round(100 * share)))
        box.util = (100 * is_busy(now_s - 0.01),)
        box.write()
        sample = box.gpu.read_sample()
        fold.add(wait_s, sample)
        wait_s = max(0.2, sample.next_look_s or 0.0)
    window = fold.window()
    assert window['util_pct'] == pytest.approx(
        100 * busy_s / wave_s, abs=6.0 if wave_s > 1.0 else 13.0
    )
    assert window['sampled_s'] == pytest.approx(now_s, rel=0.05)


@pytest.mark.parametrize('step_s', [3600.0, 0.6])
def test_a_clock_set_forward_weighs_nothing_wrong(box: Box, step_s: float):
    box.put((-0.1, 10))
    box.open()
    box.turn(1.0, wall=1.0 + step_s)
    box.put((0.1, 20), (0.2 + step_s, 30), (0.4 + step_s, 40))
    assert box.look() is None
    assert f'clock was set by {step_s} s' in box.reason()
    box.put((0.9 + step_s, 50))
    box.turn(1.0)
    assert box.look() == [(0.5, 50.0)]


def test_a_clock_set_back_is_polled_until_old_stamps_have_passed(box: Box):
    box.put((-0.1, 10), (0.0, 10))
    box.open()
    box.turn(1.0, wall=-9.0)
    # new samples among the stamps of the old ones
    box.put((-9.5, 90), (-9.2, 90))
    looks = []
    for second in range(12):
        looks.append(box.look())
        box.put((-8.5 + second, 60))
        box.turn(1.0)
    assert looks[:11] == [None] * 11
    assert looks[11] == [(pytest.approx(1.0), 60.0)]
    assert 'clock was set by -10.0 s' in box.reason()


def test_a_clock_set_back_far_is_believed_again_after_two_minutes(box: Box):
    box.put((0.0, 10))
    box.open()
    box.turn(1.0, wall=-86_400.0)
    assert box.look() is None
    box.turn(119.0)
    assert box.look() is None
    box.entries.clear()  # the driver keeps 20 s
    box.put((-86_400.0 + 119.5, 70))
    box.turn(1.0)
    assert box.look() is None
    box.put((-86_400.0 + 120.5, 80))
    box.turn(1.0)
    assert box.look() == [(1.0, 80.0)]


def test_values_of_another_type_are_not_read(box: Box):
    box.kind = 0  # double
    box.put((-0.1, 10))
    box.open()
    box.put((0.1, 20))
    box.turn(1.0)
    assert box.look() is None
    assert box.gpu.read_sample().util_pct == 7.0
    assert box.gpu.not_offered['util_buffer'] == 'the driver gave values of type 0'


def test_a_buffer_that_is_busy_once_is_polled_once(box: Box):
    box.put((-0.1, 10))
    box.open()
    box.put((0.2, 20))
    box.write(samples=(10, 0))  # timeout
    box.turn(0.3)
    assert box.look() is None
    assert 'util_buffer' in box.gpu.missed
    box.write()
    box.turn(0.3)
    assert box.look() == [(pytest.approx(0.3), 20.0)]


def test_a_thread_held_between_two_clocks_is_no_clock_step(box: Box, monkeypatch):
    box.put((-0.1, 10))
    box.open()
    box.put((0.2, 20))
    box.turn(1.0)
    held = iter([5.0])  # the cores are busy: 5 s pass between two calls

    def wall() -> float:
        seconds = box.wall.now
        box.turn(next(held, 0.0))
        return seconds

    monkeypatch.setattr(box.gpu._buffer, '_wall', wall)
    looked = box.look()
    assert looked is not None
    assert looked[0] == (pytest.approx(0.3), 20.0)
    assert box.gpu.missed == {}
