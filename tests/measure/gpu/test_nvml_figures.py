from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from fakes.clock import HandClock
from fakes.nvml import FakeGpu, FakeNvml
from mmgpu_hooks.measure.gpu import (
    GarbageError,
    Gpu,
    GpuSample,
    open_gpu,
    parse_throttle_reasons,
)
from mmgpu_hooks.measure.gpu_sampler import GpuFold
from mmgpu_hooks.schema import GpuWindow

US = 1_000_000
NOW = 1_700_000_000
OWN, OTHER = os.getpid(), 4_194_303
VITALS = ('clocks 1980 2619', 'temperature 61', 'power 350500', 'reasons 0x0')


class Watch:
    """A GPU looked at with both clocks in hand."""

    def __init__(self, fake: FakeNvml) -> None:
        self._fake = fake
        self.clock, self.wall = HandClock(), HandClock(NOW)
        self.pid_namespace = 'pid:[4026531836]'
        self._gpu: Gpu | None = None

    @property
    def gpu(self) -> Gpu:
        if self._gpu is None:
            gpu = open_gpu(
                index=0,
                environ={},
                clock=self.clock,
                wall=self.wall,
                pid_namespace=self.pid_namespace,
            )
            assert isinstance(gpu, Gpu), gpu
            self._gpu = gpu
        return self._gpu

    def script(self, *more: str, **fail: tuple[int, ...]) -> None:
        self._fake.set(FakeGpu(more=more, fail=fail))

    def look(self, after_s: float = 0.0) -> GpuSample:
        self.clock.turn(after_s)
        self.wall.turn(after_s)
        return self.gpu.read_sample()

    def close(self) -> None:
        if self._gpu is not None:
            self._gpu.close()


@pytest.fixture
def watch(fake_nvml: FakeNvml) -> Iterator[Watch]:
    watch = Watch(fake_nvml)
    yield watch
    watch.close()


def processes(*lines: str) -> tuple[str, ...]:
    return ('running', f'compute {OWN} 500', *lines)


def test_vitals_are_read_once_a_second_and_power_every_five(watch: Watch):
    watch.script(*VITALS)
    vitals = {'sm_clock_mhz': 1980.0, 'mem_clock_mhz': 2619.0, 'temperature_c': 61.0}
    first = watch.look()
    assert first.figures == {**vitals, 'power_w': 350.5}
    assert first.throttle_reasons == frozenset()
    between = watch.look(0.5)
    assert (between.figures, between.throttle_reasons) == ({}, None)
    assert watch.look(0.5).figures == vitals
    assert watch.look(4.0).figures == {**vitals, 'power_w': 350.5}


@pytest.mark.parametrize(
    ('bits', 'names'),
    [
        (0x0, set()),
        (0x3, set()),  # idle, and the clocks that the user set
        (0x4, {'power_cap'}),
        (0x1 | 0x20, {'thermal'}),
        (0x8 | 0x40 | 0x80, {'hw_slowdown', 'hw_thermal', 'power_brake'}),
        (0x10 | 0x100, {'sync_boost', 'display_clocks'}),
        (0x10000 | 0x4, {'power_cap', 'other'}),
    ],
)
def test_throttle_reasons_have_names(bits: int, names: set[str]):
    assert parse_throttle_reasons(bits) == names


def test_all_ones_are_no_reasons():
    with pytest.raises(GarbageError, match='0xffffffffffffffff'):
        parse_throttle_reasons(2**64 - 1)


def test_looks_fold_into_means_shares_and_maxima():
    fold = GpuFold()
    for clock, temperature, reasons in (
        (1000.0, 60.0, {'power_cap'}),
        (1600.0, 75.0, {'power_cap', 'thermal'}),
        (1900.0, 70.0, set()),
        (1500.0, 65.0, set()),
    ):
        figures = {
            'sm_clock_mhz': clock,
            'temperature_c': temperature,
            'others_mem_bytes': temperature,
        }
        fold.add(1.0, GpuSample(None, 5, (), figures, frozenset(reasons)))
    fold.add(1.0, GpuSample(None, 5, ()))  # not their turn
    window = GpuWindow(**fold.window())
    assert (window.sm_clock_mhz, window.temperature_c) == (1500.0, 75.0)
    assert window.others_mem_bytes == 75
    assert isinstance(window.others_mem_bytes, int)
    assert window.throttled_pct == 50.0
    assert window.throttle_reasons_pct == {'power_cap': 50.0, 'thermal': 25.0}
    assert (window.samples, window.util_pct, window.source) == (0, None, None)


def test_a_card_without_throttling_tells_so_and_one_that_is_mute_does_not():
    fold = GpuFold()
    fold.add(1.0, GpuSample(5.0, 5, throttle_reasons=frozenset()))
    assert GpuWindow(**fold.window()).throttled_pct == 0.0
    assert GpuWindow(**GpuFold().window()).throttled_pct is None


@pytest.mark.parametrize(
    ('line', 'figure'),
    [
        ('clocks 4294967295 2619', 'sm_clock_mhz'),
        ('clocks 1980 4294967295', 'mem_clock_mhz'),
        ('temperature 4294967286', 'temperature_c'),
        ('power 4294967295', 'power_w'),
        ('reasons 0x7fffffffffffffff', 'throttled_pct'),
    ],
)
def test_impossible_vitals_are_unknown(watch: Watch, line: str, figure: str):
    kept = [vital for vital in VITALS if vital.split()[0] != line.split()[0]]
    watch.script(*kept, line)
    sample = watch.look()
    assert figure not in sample.figures
    assert 'reported' in watch.gpu.missed[figure].reason
    assert figure not in watch.gpu.not_offered
    assert sample.util_pct == 50.0


def test_memory_of_other_processes_is_that_of_computing_and_drawing(watch: Watch):
    watch.script(*processes(f'compute {OTHER} 300', f'graphics {OTHER - 1} 40'))
    assert watch.look().figures == {'others_mem_bytes': 340.0}
    assert watch.look(1.0).figures == {}
    assert watch.look(2.0).figures == {'others_mem_bytes': 340.0}


def test_one_that_computes_and_draws_counts_once(watch: Watch):
    watch.script(*processes(f'compute {OTHER} 300', f'graphics {OTHER} 300'))
    assert watch.look().figures['others_mem_bytes'] == 300.0


def test_a_card_for_us_alone_has_no_others(watch: Watch):
    watch.script(*processes())
    assert watch.look().figures == {'others_mem_bytes': 0.0}


def test_in_a_container_other_processes_are_unknown(watch: Watch):
    # its own number may be in the list, and processes of others may not
    watch.pid_namespace = 'pid:[4026532281]'
    watch.script(*processes())
    assert watch.look().figures == {}
    assert 'container' in watch.gpu.not_offered['others_mem_bytes']


@pytest.mark.parametrize('listed', [f'compute {OTHER} 300', ''])
def test_without_ourselves_in_it_a_list_says_nothing(watch: Watch, listed: str):
    watch.script('running', *filter(None, [listed]))
    assert watch.look().figures == {}
    assert 'does not list' in watch.gpu.missed['others_mem_bytes'].reason
    watch.look(3.0)
    assert 'others_mem_bytes' not in watch.gpu.not_offered
    watch.look(3.0)
    assert 'does not list' in watch.gpu.not_offered['others_mem_bytes']


def test_memory_that_is_not_told_is_unknown(watch: Watch):
    watch.script(*processes(f'compute {OTHER} -1'))
    assert watch.look().figures == {}
    assert 'another process' in watch.gpu.missed['others_mem_bytes'].reason


def test_the_list_of_processes_may_grow_between_two_looks(watch: Watch):
    watch.script(*processes())
    assert watch.look().figures['others_mem_bytes'] == 0.0
    watch.script(*processes(*(f'compute {OTHER - i} 10' for i in range(12))))
    assert watch.look(3.0).figures['others_mem_bytes'] == 120.0


def test_counters_are_means_between_two_looks(watch: Watch):
    watch.script('gpm 50 25.5 10 20 3 2')
    assert watch.look().figures == {}
    assert watch.look(1.0).figures == {}
    watch.script('gpm 100.4 25.5 10 20 3 2')
    assert watch.look(1.0).figures == {'sm_active_pct': 100.0}


@pytest.mark.parametrize('value', ['nan', 'inf', '-1', '250'])
def test_an_impossible_counter_is_unknown(watch: Watch, value: str):
    watch.script(f'gpm {value} 1 1 1 1 1')
    watch.look()
    assert watch.look(2.0).figures == {}
    assert 'looks: GPM reported' in watch.gpu.reasons()['sm_active_pct']
    watch.script('gpm 50 1 1 1 1 1')
    watch.look(2.0)
    assert 'sm_active_pct' not in watch.gpu.reasons()


def test_a_look_without_counters_does_not_mix_two_times(watch: Watch):
    gpm = 'gpm 50 25.5 10 20 0 0'
    watch.script(gpm)
    watch.look()
    watch.script(gpm, gpm=(27, 0))  # not ready
    assert watch.look(2.0).figures == {}
    watch.script(gpm)
    assert watch.look(2.0).figures == {}  # the earlier of two again
    assert watch.look(2.0).figures['sm_active_pct'] == 50.0
    assert watch.gpu.not_offered.get('sm_active_pct') is None


def test_cards_before_hopper_and_slices_have_no_counters(fake_nvml: FakeNvml):
    for fake, words in (
        (FakeGpu(), 'no GPM counters'),
        (FakeGpu(mig=1, more=['gpm 1 1 1 1 1 1']), 'MIG'),
    ):
        fake_nvml.set(fake)
        gpu = open_gpu(index=0, environ={})
        assert isinstance(gpu, Gpu)
        gpu.read_sample()
        assert words in gpu.not_offered['sm_active_pct']
        gpu.close()


def test_all_of_it_reaches_the_window(watch: Watch):
    watch.script(
        *VITALS[:3],
        'reasons 0x4',
        *processes(),
        'gpm 50 25 10 20 3 2',
        f'samples {NOW * US} 0 {(NOW + 1) * US} 80',
    )
    fold = GpuFold()
    fold.add(1.0, watch.look())
    fold.add(2.0, watch.look(2.0))
    window = GpuWindow(**fold.window())
    assert window.source == 'buffer'
    unknown = [
        name for name in GpuWindow.__struct_fields__ if getattr(window, name) is None
    ]
    assert unknown == []
    assert window.util_pct == 80.0
    assert (window.samples, window.sampled_s) == (1, 1.0)
