from __future__ import annotations

import os
import threading

import pytest

from fakes.clock import HandClock
from fakes.nvml import FakeGpu, FakeNvml
from mmgpu_hooks.measure.absent import Absent, SourceError
from mmgpu_hooks.measure.gpu import Gpu, GpuSample, describe, open_gpu
from mmgpu_hooks.measure.gpu_sampler import GpuSampler

GARBAGE = '\xff\xfe\xfa'
FULL = (
    'samples',
    'clocks 1980 2619',
    'temperature 61',
    'power 350500',
    'reasons 0x4',
    'running',
    'gpm 1 1 1 1 1 1',
)
OPTIONAL = (
    'samples',
    'clocks',
    'temperature',
    'power',
    'reasons',
    'running',
    'gpm',
)


def opened(clock: HandClock | None = None) -> Gpu:
    clock = clock or HandClock()
    host = 'pid:[4026531836]'
    gpu = open_gpu(index=0, environ={}, clock=clock, wall=clock, pid_namespace=host)
    assert isinstance(gpu, Gpu), gpu
    return gpu


def refused() -> str:
    absent = open_gpu(index=0, environ={})
    assert isinstance(absent, Absent)
    return absent.reason


def look_often(gpu: Gpu, clock: HandClock, looks: int = 12) -> list[GpuSample]:
    samples = []
    for _ in range(looks):
        clock.turn(5.0)
        samples.append(gpu.read_sample())
    return samples


def test_an_older_driver_gives_what_it_has(old_nvml: FakeNvml):
    old_nvml.set(FakeGpu(more=[*FULL, f'compute {4_194_303} 9'], util=(40,)))
    clock = HandClock()
    gpu = opened(clock)
    sample = gpu.read_sample()
    assert (sample.util_pct, sample.mem_used_bytes) == (40.0, 400)
    assert sample.figures['sm_clock_mhz'] == 1980.0
    assert sample.throttle_reasons == {'power_cap'}  # under its old name
    assert gpu.unsupported == {}
    reasons = gpu.not_offered
    assert 'Function Not Found' in reasons['util_buffer']
    assert 'Function Not Found' in reasons['sm_active_pct']
    assert 'others_mem_bytes' in gpu.missed
    gpu.close()


@pytest.mark.parametrize('figure', OPTIONAL)
@pytest.mark.parametrize('code', [3, 4, 13])
def test_a_card_without_a_figure_has_a_reason_and_all_the_others(
    fake_nvml: FakeNvml, figure: str, code: int
):
    fake_nvml.set(FakeGpu(more=FULL, fail={figure: (code, 0)}))
    clock = HandClock()
    gpu = opened(clock)
    samples = look_often(gpu, clock)
    assert all((s.util_pct, s.mem_used_bytes) == (50.0, 400) for s in samples)
    assert gpu.unsupported == {}
    assert gpu.not_offered
    gpu.close()


@pytest.mark.parametrize(
    ('query', 'figure', 'util', 'memory'),
    [('util', 'util_pct', None, 400), ('memory', 'mem_used_bytes', 50.0, None)],
)
@pytest.mark.parametrize('code', [999, 17, 1234, 2, 6])
def test_an_odd_answer_about_one_essential_figure_costs_that_figure_alone(
    fake_nvml: FakeNvml,
    query: str,
    figure: str,
    util: float | None,
    memory: int | None,
    code: int,
):
    fake_nvml.set(FakeGpu(more=['power 1000'], fail={query: (code, 0)}))
    clock = HandClock()
    gpu = opened(clock)
    look_often(gpu, clock, 2)
    assert gpu.unsupported == {}  # it may come back
    for sample in look_often(gpu, clock):
        assert (sample.util_pct, sample.mem_used_bytes) == (util, memory)
        assert sample.figures['power_w'] == 1.0
    assert list(gpu.unsupported) == [figure]
    assert 'could not give it: ' in gpu.unsupported[figure]
    gpu.close()


def test_an_essential_figure_comes_back_after_two_odd_answers(fake_nvml: FakeNvml):
    fake_nvml.set(FakeGpu(fail={'util': (999, 0, 2), 'memory': (999, 0, 2)}))
    clock = HandClock()
    gpu = opened(clock)
    seen = [(s.util_pct, s.mem_used_bytes) for s in look_often(gpu, clock, 4)]
    assert seen == [(None, None)] * 2 + [(50.0, 400)] * 2
    assert gpu.unsupported == {}
    gpu.close()


@pytest.mark.parametrize('code', [999, 1234])
def test_a_card_without_a_name_is_read(fake_nvml: FakeNvml, code: int):
    fake_nvml.set(FakeGpu(fail={'name': (code, 0)}))
    gpu = opened()
    device = gpu.device()
    assert (device['name'], device['uuid']) == (None, FakeGpu.uuid)
    assert gpu.read_sample().util_pct == 50.0
    gpu.close()


@pytest.mark.parametrize('figure', OPTIONAL)
@pytest.mark.parametrize('code', [999, 17, 4711, -5])
def test_an_odd_answer_about_an_extra_never_costs_the_rest(
    fake_nvml: FakeNvml, figure: str, code: int
):
    fake_nvml.set(FakeGpu(more=FULL, fail={figure: (code, 0)}), garbage_errors=True)
    clock = HandClock()
    gpu = opened(clock)
    samples = look_often(gpu, clock)
    assert all((s.util_pct, s.mem_used_bytes) == (50.0, 400) for s in samples)
    assert gpu.unsupported == {}
    gpu.close()


def test_an_odd_answer_is_asked_for_three_times(fake_nvml: FakeNvml):
    fake_nvml.set(FakeGpu(more=['power 1000'], fail={'power': (999, 0, 2)}))
    clock = HandClock()
    gpu = opened(clock)
    seen = ['power_w' in sample.figures for sample in look_often(gpu, clock, 4)]
    assert seen == [False, False, True, True]
    assert (gpu.missed['power_w'].looks, gpu.not_offered.get('power_w')) == (2, None)
    fake_nvml.set(FakeGpu(more=['power 1000'], fail={'power': (999, 0)}))
    look_often(gpu, clock, 2)
    assert 'power_w' not in gpu.not_offered  # the earlier two were not in a row
    look_often(gpu, clock, 1)
    assert 'Unknown Error' in gpu.not_offered['power_w']
    gpu.close()


@pytest.mark.parametrize('code', [10, 11, 19, 20, 21, 23, 27])
def test_a_transient_refusal_is_never_for_good(fake_nvml: FakeNvml, code: int):
    fails = dict.fromkeys((*OPTIONAL, 'util', 'memory'), (code, 0))
    fake_nvml.set(FakeGpu(more=FULL, fail=fails))
    clock = HandClock()
    gpu = opened(clock)
    for sample in look_often(gpu, clock, 6):
        assert (sample.util_pct, sample.mem_used_bytes) == (None, None)
    assert (gpu.unsupported, gpu.not_offered) == ({}, {})
    assert gpu.missed['util_pct'].looks == 6
    fake_nvml.set(FakeGpu(more=FULL))
    last = look_often(gpu, clock, 4)[-1]
    assert (last.util_pct, last.mem_used_bytes) == (50.0, 400)
    assert {'sm_clock_mhz', 'power_w', 'sm_active_pct'} <= set(last.figures)
    gpu.close()


@pytest.mark.parametrize('figure', OPTIONAL)
@pytest.mark.parametrize('code', [1, 9, 15, 16, 18])
def test_a_card_lost_in_any_query_is_lost(fake_nvml: FakeNvml, figure: str, code: int):
    more = [*FULL, f'compute {os.getpid()} 1']
    good = 2 if figure == 'samples' else 1
    fake_nvml.set(FakeGpu(more=more, fail={figure: (code, good)}))
    clock = HandClock()
    gpu = opened(clock)
    with pytest.raises(SourceError, match='NVML stopped answering for this GPU'):
        look_often(gpu, clock)
    gpu.close()


def test_a_lost_card_with_a_driver_that_cannot_say_it(fake_nvml: FakeNvml):
    fails = {'util': (4711, 1), 'memory': (4711, 1)}
    fake_nvml.set(FakeGpu(fail=fails), garbage_errors=True)
    gpu = opened()
    for _ in range(3):
        gpu.read_sample()
    with pytest.raises(SourceError, match='NVMLError 4711'):
        gpu.read_sample()
    gpu.close()


def test_a_start_that_fails_with_garbage(fake_nvml: FakeNvml):
    fake_nvml.set(FakeGpu(), init=4711, garbage_errors=True)
    assert refused() == 'NVML could not start: NVMLError 4711'


def test_a_card_lost_while_it_is_opened(fake_nvml: FakeNvml):
    fake_nvml.set(FakeGpu(more=['samples'], fail={'samples': (15, 0)}))
    assert refused() == 'NVML stopped answering for this GPU: GPU is lost'


def test_a_name_that_is_no_text_is_unknown(fake_nvml: FakeNvml):
    fake_nvml.set(FakeGpu(name=GARBAGE), driver=GARBAGE)
    gpu = opened()
    device = gpu.device()
    assert (device['name'], device['driver_version']) == (None, None)
    assert (device['uuid'], device['memory_total_bytes']) == (FakeGpu.uuid, 1000)
    assert 'no text' in gpu.missed['name'].reason
    gpu.close()


def test_a_uuid_that_is_no_text(fake_nvml: FakeNvml):
    fake_nvml.set(FakeGpu(uuid=GARBAGE))
    gpu = opened()
    assert (gpu.device()['uuid'], gpu.read_sample().util_pct) == (None, 50.0)
    gpu.close()
    absent = open_gpu(uuid='GPU-1', pci_bus_id=FakeGpu.bus)
    assert isinstance(absent, Absent)
    assert 'no text' in absent.reason


def test_a_library_without_its_first_function(fake_nvml: FakeNvml, monkeypatch):
    import ctypes

    import pynvml

    monkeypatch.setattr(pynvml, 'nvmlLib', ctypes.CDLL(None))
    assert 'could not start: Function Not Found' in refused()


def test_an_old_pynvml_that_lacks_a_wrapper(fake_nvml: FakeNvml, monkeypatch):
    import pynvml

    for name in (
        'nvmlGpmQueryDeviceSupport',
        'nvmlDeviceGetPowerUsage',
        'nvmlDeviceGetMigMode',
        'nvmlDeviceGetSamples',
        'nvmlDeviceGetComputeRunningProcesses',
    ):
        monkeypatch.delattr(pynvml, name)
    fake_nvml.set(FakeGpu(more=[*FULL, 'compute 1 1']))
    gpu = opened()
    assert gpu.read_sample().util_pct == 50.0
    assert 'nvidia-ml-py cannot ask for it' in gpu.not_offered['util_buffer']
    assert 'nvidia-ml-py cannot ask for it' in gpu.not_offered['others_mem_bytes']
    assert 'nvidia-ml-py cannot ask for it' in gpu.not_offered['power_w']
    assert 'nvidia-ml-py cannot ask for it' in gpu.not_offered['sm_active_pct']
    gpu.close()


def test_a_card_is_let_go_by_the_thread_that_reads_it(fake_nvml: FakeNvml, monkeypatch):
    import pynvml

    fake_nvml.set(FakeGpu(more=[line for line in FULL if line != 'samples']))
    gpu = opened()
    inside, go_on = threading.Event(), threading.Event()
    read = pynvml.nvmlDeviceGetUtilizationRates

    def slow(handle: object) -> object:
        inside.set()
        assert go_on.wait(10.0)
        return read(handle)

    monkeypatch.setattr(pynvml, 'nvmlDeviceGetUtilizationRates', slow)
    sampler = GpuSampler(gpu.read_sample, 0.001, close=gpu.close)
    sampler.start()
    assert inside.wait(10.0)
    assert not sampler.stop(0.01)
    assert fake_nvml.users() == 1  # in use: neither freed nor shut down under it
    go_on.set()
    assert sampler.stop(10.0)
    assert fake_nvml.users() == 0
    with pytest.raises(SourceError, match='after it had been closed'):
        gpu.read_sample()


@pytest.mark.parametrize(
    ('query', 'figures'),
    [
        ('util', ['util_pct']),
        ('memory', ['mem_used_bytes']),
        ('power', ['power_w']),
        ('reasons', ['throttled_pct']),
        ('gpm', ['sm_active_pct']),
        ('running', ['others_mem_bytes']),
    ],
)
def test_a_figure_that_is_always_missed_has_a_reason(
    fake_nvml: FakeNvml, query: str, figures: list[str]
):
    more = [line for line in FULL if line != 'samples']
    more.append(f'compute {os.getpid()} 9')
    fake_nvml.set(FakeGpu(more=more, fail={query: (10, 0)}))
    clock = HandClock()
    gpu = opened(clock)
    samples = look_often(gpu, clock, 5)
    for figure in figures:
        assert not any(figure in sample.figures for sample in samples)
        assert gpu.reasons()[figure].startswith('missed at 5 looks: the driver could')
    # and none once it is there
    fake_nvml.set(FakeGpu(more=more))
    look_often(gpu, clock, 2)
    assert not set(figures) & set(gpu.reasons())
    gpu.close()


def test_what_is_not_offered_has_a_reason_too_and_what_is_announced_has_none(
    fake_nvml: FakeNvml,
):
    fake_nvml.set(FakeGpu(util=()))
    gpu = opened()
    gpu.read_sample()
    assert 'util_pct' in gpu.unsupported
    assert 'util_pct' not in gpu.reasons()
    assert gpu.reasons()['power_w'] == gpu.not_offered['power_w']
    gpu.close()


def test_an_error_that_cannot_be_printed_has_its_name():
    class MuteError(Exception):
        def __str__(self) -> str:
            raise UnicodeDecodeError('utf-8', b'\xff', 0, 1, 'no text')

    assert describe(MuteError()) == 'MuteError'
    assert describe(ValueError('two\n lines')) == 'two lines'
