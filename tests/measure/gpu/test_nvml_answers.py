"""Tests NVML's answers: values at their own rates, refusals, garbage, a lost GPU."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from fakes.clock import HandClock
from fakes.nvml import FakeGpu, FakeNvml
from mmgpu_hooks.measure.absent import SourceError
from mmgpu_hooks.measure.gpu import GpuSampler, Sample, open_gpu, parse_reasons

GARBAGE = '\xff\xfe\xfa'
FULL = ('clocks 1980 2619', 'temperature 61', 'reasons 0x4', 'gpm 50')
FIGURES = {
    'clocks': 'sm_clock_mhz',
    'temperature': 'temperature_c',
    'reasons': 'throttled_pct',
    'gpm': 'sm_active_pct',
    'util': 'util_pct',
    'memory': 'mem_used_bytes',
}


class Watch:
    """Sampler of the fake NVML's GPU, with a fake clock that it advances."""

    def __init__(self, fake: FakeNvml) -> None:
        self.fake, self.clock = fake, HandClock()
        self.gpu = open_gpu(index=0, clock=self.clock)

    def script(self, *more: str, **fail: tuple[int, ...]) -> None:
        self.fake.set(FakeGpu(more=more, fail=fail))

    def sample(self, times: int = 1, after_s: float = 5.0) -> Sample:
        for _ in range(times):
            self.clock.turn(after_s)
            sample = self.gpu.read_sample()
        return sample


@pytest.fixture
def watch(fake_nvml: FakeNvml) -> Iterator[Watch]:
    watch = Watch(fake_nvml)
    yield watch
    watch.gpu.close()


def test_what_changes_slowly_is_read_once_a_second(watch: Watch):
    watch.script(*FULL)
    often = {'util_pct': 50.0, 'mem_used_bytes': 400}
    seldom: dict[str, Any] = {'sm_clock_mhz': 1980.0, 'temperature_c': 61.0}
    seldom |= {**often, 'throttled_pct': frozenset({'power_cap'})}
    assert watch.sample() == seldom
    # a short run has a share of two readings, or the reason
    assert 'needs two' in watch.gpu.reasons()['sm_active_pct']
    assert watch.sample(after_s=0.2) == {**seldom, 'sm_active_pct': 50.0}
    assert watch.gpu.reasons() == {}
    assert watch.sample(after_s=0.5) == often
    watch.script(*FULL[:3], 'gpm 100.4')
    assert watch.sample(after_s=0.5) == {**seldom, 'sm_active_pct': 100.0}


@pytest.mark.parametrize(
    ('bits', 'names'),
    [
        (0x0, set()),
        (0x3, set()),  # idle, and the clocks that the user set
        (0x1 | 0x20, {'thermal'}),
        (0x8 | 0x40 | 0x80, {'hw_slowdown', 'hw_thermal', 'power_brake'}),
        (0x10000 | 0x4, {'power_cap', 'other'}),
    ],
)
def test_throttle_reasons_have_names(bits: int, names: set[str]):
    assert parse_reasons(bits) == names
    with pytest.raises(ValueError, match='0xffffffffffffffff'):
        parse_reasons(2**64 - 1)


@pytest.mark.parametrize(
    ('answer', 'figure'),
    [
        ({'util': (101,)}, 'util_pct'),
        ({'util': (4294967295,)}, 'util_pct'),
        ({'memory': (1000, 1001)}, 'mem_used_bytes'),
        ({'memory': (0, 0)}, 'mem_used_bytes'),
        ('clocks 4294967295 2619', 'sm_clock_mhz'),
        ('temperature 4294967286', 'temperature_c'),
        ('reasons 0x7fffffffffffffff', 'throttled_pct'),
        ('gpm nan', 'sm_active_pct'),
        ('gpm 250', 'sm_active_pct'),
    ],
)
def test_impossible_answers_are_unknown(watch: Watch, answer, figure: str):
    more = list(FULL)
    if isinstance(answer, str):
        more = [known for known in FULL if known.split()[0] != answer.split()[0]] + [
            answer
        ]
        answer = {}
    watch.fake.set(FakeGpu(more=more, **answer))
    assert set(watch.sample(2)) == {*FIGURES.values()} - {figure}
    assert 'reported' in watch.gpu.reasons()[figure]
    assert watch.gpu.unsupported == {}


def test_a_sample_without_the_counter_does_not_mix_two_times(watch: Watch):
    watch.script(*FULL)
    watch.sample()
    watch.script(*FULL, gpm=(27, 0))  # not ready
    assert 'sm_active_pct' not in watch.sample()
    watch.script(*FULL)
    assert 'sm_active_pct' not in watch.sample()  # the earlier of two again
    assert watch.sample()['sm_active_pct'] == 50.0


def test_cards_before_hopper_have_no_counters(watch: Watch):
    watch.fake.set(FakeGpu())
    watch.sample()
    assert 'no GPM counters' in watch.gpu.reasons()['sm_active_pct']


@pytest.mark.parametrize('query', FIGURES)
@pytest.mark.parametrize('code', [3, 4, 13, 999, 17, -5])
def test_a_refused_figure_has_a_reason_and_costs_nothing_else(watch, query, code):
    figure, fails = FIGURES[query], {query: (code, 0)}
    is_essential = query in ('util', 'memory')
    watch.fake.set(FakeGpu(more=FULL, fail=fails), garbage_errors=True)
    if code in (999, 17, -5):  # it may come back
        watch.sample(2)
        watch.script(*FULL)
        assert figure in set(watch.sample(2))
        watch.fake.set(FakeGpu(more=FULL, fail=fails), garbage_errors=True)
    watch.sample(3)
    watch.script(*FULL)
    # asked no more
    assert set(watch.sample(2)) == {*FIGURES.values()} - {figure}
    reasons = watch.gpu.unsupported if is_essential else watch.gpu.reasons()
    assert list(reasons) == [figure]
    assert 'MIG' not in reasons[figure]


@pytest.mark.parametrize('code', [10, 21, 27])
def test_a_transient_refusal_is_never_for_good(watch: Watch, code: int):
    watch.script(*FULL, **dict.fromkeys(FIGURES, (code, 0)))
    assert watch.sample(6) == {}
    assert watch.gpu.unsupported == {}
    assert set(watch.gpu.reasons()) == {*FIGURES.values()}
    watch.script(*FULL)
    assert set(watch.sample(2)) == {*FIGURES.values()}
    assert watch.gpu.reasons() == {}


@pytest.mark.parametrize('query', FIGURES)
@pytest.mark.parametrize('code', [9, 15])
def test_a_card_lost_in_any_query_is_lost(watch: Watch, query: str, code: int):
    watch.script(*FULL, **{query: (code, 1)})
    with pytest.raises(SourceError, match='NVML stopped answering for this GPU'):
        watch.sample(4)


def test_a_driver_that_cannot_say_why_costs_what_it_does_not_give(watch: Watch):
    fails = {'util': (4711, 1), 'memory': (4711, 1)}
    watch.fake.set(FakeGpu(more=FULL, fail=fails), garbage_errors=True)
    watch.sample(4)
    assert set(watch.gpu.unsupported) == {'util_pct', 'mem_used_bytes'}
    assert 'NVMLError 4711' in watch.gpu.unsupported['util_pct']
    assert 'temperature_c' in watch.sample()


def test_a_name_that_is_no_text_is_unknown(fake_nvml: FakeNvml):
    fake_nvml.set(FakeGpu(name=GARBAGE), driver=GARBAGE)
    gpu = open_gpu(index=0)
    device = gpu.device()
    assert device == {'uuid': FakeGpu.uuid, 'memory_total_bytes': 1000}
    assert "can't decode byte" in gpu.reasons()['name']
    gpu.close()


def test_a_card_is_let_go_by_the_thread_that_reads_it(watch: Watch, monkeypatch):
    import pynvml

    watch.script(*FULL)
    inside, go_on = threading.Event(), threading.Event()
    read, gpu = pynvml.nvmlDeviceGetUtilizationRates, watch.gpu

    def slow(handle: object) -> object:
        inside.set()
        assert go_on.wait(10.0)
        return read(handle)

    monkeypatch.setattr(pynvml, 'nvmlDeviceGetUtilizationRates', slow)
    sampler = GpuSampler(gpu.read_sample, 0.001, close=gpu.close)
    sampler.start()
    assert inside.wait(10.0)
    sampler.stop(0.01)
    # in use: neither freed nor shut down under it
    assert watch.fake.counter('users').value == 1
    go_on.set()
    sampler.stop(10.0)
    assert watch.fake.counter('users').value == 0
