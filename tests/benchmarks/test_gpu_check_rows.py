"""The checks of ``make gpu-check`` as far as they go without a GPU."""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from fakes.clock import HandClock
from fakes.nvml import FakeGpu, FakeNvml
from fakes.nvml.fixtures import fake_nvml, fake_nvml_library
from fakes.replaced import replace

pytest.importorskip('torch', exc_type=ImportError)
pytest.importorskip('mmengine', exc_type=ImportError)

import torch

from benchmarks.gpu_check import alone, load, longer, mapping, nvml, smi, training
from benchmarks.gpu_check.models import TOY, TorchvisionDetector
from benchmarks.gpu_check.table import MISSED, OK, SKIPPED, Row
from benchmarks.gpu_check.training import Trained, train
from mmgpu_hooks.measure.cuda import CudaEvents
from mmgpu_hooks.measure.gpu import open_gpu

__all__ = ['fake_nvml', 'fake_nvml_library']

SMI = """#!/bin/sh
case "$*" in
*utilization.gpu*) while :; do
    util=$(cat {util})
    echo "$(date +'%Y/%m/%d %H:%M:%S.%3N'), $util"
    sleep 0.05
    done ;;
*memory.total*) echo '1000, 600' ;;
*uuid*) printf '0, {first}\\n1, GPU-2\\n' ;;
esac
"""


@pytest.fixture
def box(
    fake_nvml: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> SimpleNamespace:
    """A GPU that works when told to, and an nvidia-smi that sees the same."""
    util = tmp_path / 'util'
    smi = tmp_path / 'bin' / 'nvidia-smi'
    smi.parent.mkdir()
    smi.write_text(SMI.format(util=util, first=FakeGpu.uuid))
    smi.chmod(0o755)
    monkeypatch.setenv('PATH', str(smi.parent), prepend=os.pathsep)

    def be(percent: int, theirs: int | None = None) -> None:
        util.write_text(f'{percent if theirs is None else theirs}\n')
        fake_nvml.set(
            FakeGpu(
                util=(percent,),
                memory=(1000 * 2**20, 400 * 2**20),
                more=['clocks 1980 2619'],
            )
        )

    def keep_busy(seconds: float) -> None:
        be(box.busy, box.theirs)
        time.sleep(seconds)

    def rest(seconds: float) -> None:
        be(0)
        time.sleep(seconds)

    box = SimpleNamespace(busy=100, theirs=None, keep_busy=keep_busy)
    be(0)
    monkeypatch.setattr(load, 'Matmuls', lambda: box)
    clocks = {'time': time.time, 'perf_counter': time.perf_counter}
    patched = SimpleNamespace(**clocks, thread_time=time.thread_time, sleep=rest)
    monkeypatch.setattr(nvml, 'time', patched)
    monkeypatch.setattr(nvml, 'open_our_gpu', lambda: open_gpu(uuid=FakeGpu.uuid))
    monkeypatch.setattr(nvml, 'CONSTANT', ((0.3, 0.0, 2), (0.0, 0.3, 2)))
    monkeypatch.setattr(torch, 'empty', lambda *_, **__: None)
    monkeypatch.setattr(torch.cuda, 'synchronize', lambda: None)
    return box


BUSY = 'utilisation, 0.3 s of work and 0 s of rest'
IDLE = 'utilisation, 0 s of work and 0.3 s of rest'


def verdicts(rows: list[Row]) -> dict[str, str]:
    return {row.check: row.verdict for row in rows}


def test_figures_that_agree_are_met(box: SimpleNamespace):
    seen = verdicts(nvml.check_nvml())
    assert seen.pop('NVML thread: CPU') in (OK, MISSED)  # the fake reads a file
    assert seen[f'{BUSY}: planted'] == OK
    assert seen[f'{IDLE}: nvidia-smi'] == OK
    assert seen['device memory in use: nvidia-smi'] == OK
    assert {check for check, verdict in seen.items() if verdict != OK} == set()
    assert not [t for t in threading.enumerate() if t.name.startswith('mmgpu')]


def test_figures_that_were_never_given_are_missed(
    box: SimpleNamespace, fake_nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
):
    def be(percent: int, *_: object) -> None:
        fake_nvml.set(FakeGpu(util=(), memory=None, more=['clocks 1980 2619']))
        time.sleep(0.1)

    box.keep_busy = be
    monkeypatch.setattr(nvml.time, 'sleep', be)
    rows = {row.check: row for row in nvml.check_nvml()}
    for check in (BUSY, IDLE, 'device memory in use: nvidia-smi'):
        assert rows[check].verdict == MISSED, rows[check]
        assert 'Not Supported' in rows[check].note


@pytest.mark.timing
def test_a_sampler_that_gives_up_is_missed(box: SimpleNamespace, fake_nvml: FakeNvml):
    fake_nvml.set(FakeGpu(fail={'util': (15, 1)}))
    box.keep_busy = time.sleep
    rows = {row.check: row for row in nvml.check_nvml()}
    for check in (BUSY, 'NVML thread: CPU'):
        assert rows[check].verdict == MISSED, rows[check]
        assert 'GPU is lost' in rows[check].note


def test_a_look_of_nvidia_smi_carries_its_own_time():
    first = smi.parse_smi_look('2026/01/02 03:04:05.250, 97')
    second = smi.parse_smi_look('2026/01/02 03:04:05.500, 98\n')
    assert first is not None and second is not None
    assert (second[0] - first[0], first[1], second[1]) == (0.25, 97.0, 98.0)
    for garbage in ('', 'Unable to determine the device handle', '1, 2, 3'):
        assert smi.parse_smi_look(garbage) is None


def test_figures_that_differ_are_missed(box: SimpleNamespace):
    box.busy, box.theirs = 80, 99
    rows = {row.check: row for row in nvml.check_nvml()}
    assert rows[f'{BUSY}: planted'].verdict == MISSED
    assert rows[f'{BUSY}: nvidia-smi'].verdict == MISSED
    assert '% beside 99.0 %' in rows[f'{BUSY}: nvidia-smi'].measured


def test_what_was_planted_is_told_by_the_clock(monkeypatch: pytest.MonkeyPatch):
    clock = HandClock(0.0)
    patched = SimpleNamespace(perf_counter=clock, sleep=clock.turn)
    monkeypatch.setattr(nvml, 'time', patched)
    # the card is done a quarter later than asked for
    work = SimpleNamespace(keep_busy=lambda seconds: clock.turn(1.25 * seconds))
    assert nvml.plant(work, 0.4, 0.5, 3) == pytest.approx(50)
    assert nvml.plant(work, 0.4, 0.0, 1) == 100


@pytest.mark.parametrize(('found', 'verdict'), [('GPU-2', OK), ('GPU-9', MISSED)])
def test_mapping_is_held_against_nvidia_smi(
    box: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, found: str, verdict: str
):
    monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
    monkeypatch.setattr(
        mapping,
        'LOOK_UP',
        f'print(\'{{"uuid": "{found}", "pci": "{found}"}}\')',
    )
    row = mapping._check_one_mapping('1,0', 'GPU-2', 2)
    assert (row.check, row.verdict) == ('CUDA_VISIBLE_DEVICES=1,0', verdict)


def test_the_process_that_looks_up_finds_this_checkout_from_anywhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv('PYTHONPATH', raising=False)
    monkeypatch.setenv('PYTHONSAFEPATH', '1')
    look_up = 'import benchmarks, mmgpu_hooks; print(\'{"uuid": "GPU-2"}\')'
    monkeypatch.setattr(mapping, 'LOOK_UP', look_up)
    row = mapping._check_one_mapping('0', 'GPU-2', 1)
    assert row.verdict == OK, row


def test_mapping_asks_for_each_spelling(
    box: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
):
    asked = []
    monkeypatch.setattr(
        mapping,
        '_check_one_mapping',
        lambda spelling, uuid, cards: asked.append((spelling, uuid, cards)),
    )
    monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
    mapping.check_mapping()
    first = FakeGpu.uuid
    assert asked == [
        ('1', 'GPU-2', 2),
        ('GPU-2', 'GPU-2', 2),
        ('1,0', 'GPU-2', 2),
        ('0', first, 2),
        (first, first, 2),
        ('0,1', first, 2),
    ]
    asked.clear()
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', 'GPU-2')  # we were given but one
    mapping.check_mapping()
    assert asked == [('1', 'GPU-2', 1), ('GPU-2', 'GPU-2', 1)]


def test_a_process_that_dies_says_why(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mapping, 'LOOK_UP', 'raise SystemExit("no CUDA")')
    with pytest.raises(RuntimeError, match='no CUDA'):
        mapping._check_one_mapping('0', 'GPU-1', 1)


@pytest.mark.parametrize(('off_s', 'verdict'), [(0.0, OK), (0.01, MISSED)])
def test_the_idle_share_is_held_against_the_hosts_clock(
    monkeypatch: pytest.MonkeyPatch, off_s: float, verdict: str
):
    host = HandClock(0.0)

    class Event:
        def record(self, stream: None) -> None:
            # events that lag behind what the GPU did are off
            self.at = max(gpu.done_at, host()) + off_s * (self is not None)
            gpu.done_at = self.at

        def query(self) -> bool:
            return self.at <= host()

        def elapsed_time(self, later: Event) -> float:
            return 1e3 * (later.at - self.at)

    gpu = SimpleNamespace(done_at=0.0)

    def queue(seconds: float) -> None:
        gpu.done_at = max(gpu.done_at, host()) + seconds

    def synchronize() -> None:
        host.now = max(host.now, gpu.done_at)

    monkeypatch.setattr(
        alone, 'time', SimpleNamespace(perf_counter=host, sleep=host.turn)
    )
    monkeypatch.setattr(
        alone, 'open_cuda_events', lambda: CudaEvents(Event, lambda: None)
    )
    monkeypatch.setattr(torch.cuda, 'synchronize', synchronize)
    load = SimpleNamespace(queue=queue)
    row = alone._check_stall(load, 0.025, 'planted stall')
    assert row.verdict == verdict, row
    assert '39 iterations' in row.note


def test_without_cuda_events_are_skipped():
    row = alone._check_stall(SimpleNamespace(), 0.0, 'no stall')
    assert row.verdict == SKIPPED


@pytest.mark.parametrize(
    ('losses', 'verdict', 'words'),
    [
        (('ab', 'ab', 'ab'), OK, '0 of 2 differ'),
        (('ab', 'ab', 'ac'), MISSED, '1 of 2 differ'),
        (('ab', 'ab', 'a'), MISSED, '1 of 2 differ'),
        (('ab', 'ac', 'ab'), SKIPPED, '-'),
    ],
)
def test_losses_are_compared_beside_a_control(
    monkeypatch: pytest.MonkeyPatch, losses: tuple[str, ...], verdict: str, words: str
):
    tapes = iter(losses)
    hooks: list[object] = []

    def train(_: object, sides: list[int], hook: object, **how: object) -> Trained:
        hooks.append(hook)
        assert how == {'deterministic': True, 'optim': 'AmpOptimWrapper'}
        return Trained(SimpleNamespace(losses=list(next(tapes))), None)

    monkeypatch.setattr(training, 'train', train)
    row = training._check_losses('AMP', 'AmpOptimWrapper')
    assert (row.verdict, row.measured) == (verdict, words)
    assert [hook is None for hook in hooks] == [True, True, False]


@pytest.fixture(scope='module')
def trained() -> Trained:
    """A real training on the CPU, with peaks made up."""
    peaks = iter([9, 2, 2, 2, 7, 3, 3, 3])
    return train(TOY, [32] * 8, read_peak=lambda: next(peaks))


@pytest.mark.parametrize(('off', 'verdict'), [(0, OK), (1, MISSED)])
def test_peaks_are_held_against_torchs_own(trained: Trained, off: int, verdict: str):
    assert trained.evidence is not None
    assert [r.iteration for r in trained.evidence.intervals] == [4, 8]
    intervals = [
        replace(record, gpu_mem_peak_bytes=peak)
        for record, peak in zip(trained.evidence.intervals, (9, 7 + off))
    ]
    evidence = replace(trained.evidence, intervals=intervals)
    row = training._compare('peaks', Trained(trained.tape, evidence))
    assert (row.verdict, f'{off} bytes off' in row.measured) == (verdict, True)


def test_a_large_image_stays_large_in_the_detector(monkeypatch: pytest.MonkeyPatch):
    asked: list[dict[str, object]] = []

    def build(**how: object) -> torch.nn.Module:
        asked.append(how)
        return torch.nn.Identity()

    name = 'torchvision.models.detection'
    faked = SimpleNamespace(fasterrcnn_mobilenet_v3_large_320_fpn=build)
    monkeypatch.setitem(sys.modules, 'torchvision', ModuleType('torchvision'))
    monkeypatch.setitem(sys.modules, 'torchvision.models', ModuleType('models'))
    monkeypatch.setitem(sys.modules, name, faked)
    TorchvisionDetector()
    assert asked[0]['_skip_resize'] is True


@pytest.fixture
def no_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings here have no card that could tell any."""
    monkeypatch.setattr(torch.cuda, 'max_memory_allocated', lambda: 0)


@pytest.mark.usefixtures('no_peaks')
def test_what_synchronises_is_found(monkeypatch: pytest.MonkeyPatch):
    modes = ['default']
    monkeypatch.setattr(torch.cuda, 'set_sync_debug_mode', modes.append)

    def refuse(*_: object, **__: object) -> None:
        assert modes[-1] == 'error'
        raise RuntimeError('called a synchronizing CUDA operation')

    monkeypatch.setattr(torch, 'ones', refuse)
    (row,) = training.check_sync()
    assert (row.verdict, row.measured) == (OK, '0 source(s)')
    # a source of ours that does
    source = 'mmgpu_hooks.measure.host.HostMeter.read'
    monkeypatch.setattr(source, refuse)
    (row,) = training.check_sync()
    assert row.verdict == MISSED
    assert 'host: RuntimeError: called a synchronizing' in row.note
    assert modes[-1] == 'default'
    # a torch that lets everything pass
    monkeypatch.setattr(torch, 'ones', lambda *_, **__: torch.zeros(1))
    assert training.check_sync()[0].verdict == SKIPPED


@pytest.mark.timing
@pytest.mark.usefixtures('no_peaks')
def test_the_wait_that_is_recorded_is_the_one_that_was_planted(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(training, 'STALLS_S', (0.03,))
    wait, idle = training.check_stalls()
    assert wait.verdict == OK, wait
    assert (idle.verdict, idle.measured) == (MISSED, 'unknown')
    monkeypatch.setattr(training, 'read_idle', lambda evidence: 99.0)
    assert training.check_stalls()[1].verdict == OK


@pytest.mark.usefixtures('no_peaks')
def test_what_the_hook_adds_is_measured_in_turns(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(training, 'COST_ITERATIONS', 8)
    assert training.check_cost()[0].verdict == SKIPPED
    monkeypatch.setattr(training, 'timing', lambda *_: nullcontext(SPENT))
    taken = iter([0.0031, 0.0030, 0.0030, 0.0031] * 3)
    monkeypatch.setattr(training, '_iteration_s', lambda trained: next(taken))
    iteration, interval, added = training.check_cost()
    assert (iteration.verdict, iteration.measured) == (OK, '14.00 us median')
    assert (interval.verdict, interval.measured) == (MISSED, '2.00 ms median')
    assert (added.measured, added.target) == ('+100 us', '<= 100 us')


SPENT = {'begin_step': [8e-6] * 110, 'end_step': [6e-6] * 110, 'drain': [0.002]}


@pytest.mark.parametrize(
    ('spans', 'share'),
    [
        # four stalls pass; then 40 of 100 twice, a kernel on another stream beside
        ([(n * 100, n * 100 + 60) for n in range(7)], 40),
        (
            [
                (n * 100 + a, n * 100 + b)
                for n in range(7)
                for a, b in ((0, 60), (5, 20))
            ],
            40,
        ),
        ([(n * 10, n * 10 + 8) for n in range(7)], None),
        ([], None),
    ],
)
def test_stalls_between_kernels(spans: list[tuple[float, float]], share: float | None):
    assert training.read_idle_pct(spans, 30) == share


@pytest.mark.slow
def test_a_profile_without_a_card_has_no_kernels():
    parts, kernels = longer.check_profile()
    assert parts.verdict == OK, parts
    assert kernels.verdict == MISSED
    assert 'layers' in kernels.note


def test_unknown_peaks_are_missed_with_the_reason(trained: Trained):
    row = training._compare('peaks', trained)
    assert (row.verdict, row.measured) == (MISSED, 'unknown')
    assert 'runs on the CPU' in row.note
