"""The checks of ``make gpu-check`` as far as they go without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks.gpu_check import __main__ as gpu_check
from benchmarks.gpu_check import events, load, mapping, nvml, training
from benchmarks.gpu_check.models import toy
from benchmarks.gpu_check.training import HOOK, Trained, train
from benchmarks.harness import Figure
from fakes.clock import HandClock
from fakes.nvml import FakeGpu, FakeNvml
from fakes.nvml.fixtures import fake_nvml, fake_nvml_library
from fakes.replaced import replace
from mmgpu_hooks.measure.cuda import CudaEvents
from mmgpu_hooks.measure.gpu import open_gpu

__all__ = ['fake_nvml', 'fake_nvml_library']

ROOT = Path(__file__).resolve().parents[2]

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
    """A GPU that works when it is asked to, and an nvidia-smi that sees the same."""
    util = tmp_path / 'util'
    smi = tmp_path / 'bin' / 'nvidia-smi'
    smi.parent.mkdir()
    smi.write_text(SMI.format(util=util, first=FakeGpu.uuid))
    smi.chmod(0o755)
    monkeypatch.setenv('PATH', str(smi.parent), prepend=os.pathsep)

    def be(percent: int) -> None:
        util.write_text(f'{box.theirs or percent}\n')
        memory = (1000 * 2**20, 400 * 2**20)
        clocks = ['clocks 1980 2619']
        fake_nvml.set(box.gpu or FakeGpu(util=(percent,), memory=memory, more=clocks))

    def work(percent: int, seconds: float) -> None:
        be(percent)
        time.sleep(seconds)

    box = SimpleNamespace(theirs=None, gpu=None)
    box.keep_busy = lambda seconds: work(100, seconds)
    be(0)
    monkeypatch.setattr(load, 'Matmuls', lambda: box)
    clocks = {'time': time.time, 'perf_counter': time.perf_counter}
    clocks['sleep'] = lambda seconds: work(0, seconds)
    patched = SimpleNamespace(**clocks, thread_time=time.thread_time)
    monkeypatch.setattr(nvml, 'time', patched)
    monkeypatch.setattr(nvml, 'open_our_gpu', lambda: open_gpu(uuid=FakeGpu.uuid))
    monkeypatch.setattr(nvml, 'SETTLE_S', 0.3)
    monkeypatch.setattr(nvml, 'MEASURE_S', 0.6)
    monkeypatch.setattr(nvml, 'MORE_S', 0.0)
    monkeypatch.setattr(torch, 'empty', lambda *_, **__: None)
    monkeypatch.setattr(torch.cuda, 'synchronize', lambda: None)
    return box


def by_name(figures: list[Figure]) -> dict[str, Figure]:
    return {figure.name: figure for figure in figures}


def test_figures_that_agree_are_met(box: SimpleNamespace):
    # the phases switch at once: the first samples of each are left out with SETTLE_S
    figures = by_name(nvml.check_nvml())
    figures.pop('NVML thread: CPU')  # the fake reads a file
    for phase in ('busy', 'idle'):
        for truth in ('planted', 'nvidia-smi'):
            assert figures[f'utilisation, {phase} phase: {truth}'].verdict == 'met'
    assert figures['device memory in use: nvidia-smi'].verdict == 'met'
    assert {figure.verdict for figure in figures.values()} <= {'met', ''}
    assert not [t for t in threading.enumerate() if t.name.startswith('mmgpu')]


@pytest.mark.parametrize(
    ('gpu', 'theirs', 'reason'),
    [
        (FakeGpu(util=(), memory=None), None, 'Not Supported'),
        (FakeGpu(fail={'util': (15, 1)}), None, 'GPU is lost'),
        (None, 60, ' samples'),
    ],
)
def test_figures_that_differ_or_were_never_given_are_missed(
    box: SimpleNamespace, gpu: FakeGpu | None, theirs: int | None, reason: str
):
    box.gpu, box.theirs = gpu, theirs
    figures = by_name(nvml.check_nvml())
    missed = figures['utilisation, busy phase: nvidia-smi']
    assert missed.verdict == 'missed'
    assert reason in missed.note


def test_a_sample_of_nvidia_smi_carries_its_own_time():
    first = nvml.parse_smi_sample('2026/01/02 03:04:05.250, 97')
    second = nvml.parse_smi_sample('2026/01/02 03:04:05.500, 98\n')
    assert first is not None and second is not None
    assert (second[0] - first[0], first[1], second[1]) == (0.25, 97.0, 98.0)
    for garbage in ('', 'Unable to determine the device handle', '1, 2, 3'):
        assert nvml.parse_smi_sample(garbage) is None


@pytest.mark.parametrize(
    ('code', 'verdict', 'note'),
    [
        ('import benchmarks, mmgpu_hooks; print(\'{"uuid": "GPU-2"}\')', 'met', ''),
        ('print(\'{"uuid": "GPU-2", "pci": "GPU-9"}\')', 'missed', 'pci GPU-9'),
        ('raise SystemExit("no CUDA")', 'missed', 'no CUDA'),
    ],
)
def test_each_way_to_find_a_card_is_held_against_nvidia_smi(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    code: str,
    verdict: str,
    note: str,
):
    # from any folder, the process finds this checkout
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv('PYTHONPATH', raising=False)
    monkeypatch.setattr(mapping, 'LOOK_UP', code)
    figure = mapping._check_one_mapping('1,0', 'GPU-2', 2)
    assert figure.verdict == verdict, figure
    assert note in figure.note


def test_mapping_asks_for_each_spelling(
    box: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
):
    asked: list[tuple[str, str, int]] = []
    monkeypatch.setattr(mapping, '_check_one_mapping', lambda *how: asked.append(how))
    monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
    mapping.check_mapping()
    first, of_2 = FakeGpu.uuid, [('1', 'GPU-2', 2), ('GPU-2', 'GPU-2', 2)]
    of_2.append(('1,0', 'GPU-2', 2))
    assert asked == [*of_2, ('0', first, 2), (first, first, 2), ('0,1', first, 2)]
    asked.clear()
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', 'GPU-2')  # we were given but one
    mapping.check_mapping()
    assert asked == [('1', 'GPU-2', 1), ('GPU-2', 'GPU-2', 1)]


@pytest.mark.parametrize(('off_s', 'verdict'), [(0.0, 'met'), (0.01, 'missed')])
def test_the_idle_share_is_held_against_the_hosts_clock(
    monkeypatch: pytest.MonkeyPatch, off_s: float, verdict: str
):
    host = HandClock(0.0)

    class Event:
        def record(self, stream: None) -> None:
            # events that lag behind what the GPU did are off
            self.at = max(gpu.done_at, host()) + off_s
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
        events, 'time', SimpleNamespace(perf_counter=host, sleep=host.turn)
    )
    monkeypatch.setattr(
        events, 'open_cuda_events', lambda: CudaEvents(Event, lambda: None)
    )
    monkeypatch.setattr(torch.cuda, 'synchronize', synchronize)
    load = SimpleNamespace(queue=queue)
    figure = events._check_stall(load, 0.025, 'planted stall')
    assert figure.verdict == verdict, figure
    assert '39 iterations' in figure.note


@pytest.mark.parametrize(
    ('losses', 'verdict', 'differ'),
    [
        (('ab', 'ab', 'ab'), 'met', 0),
        (('ab', 'ab', 'ac'), 'missed', 1),
        (('ab', 'ab', 'a'), 'missed', 1),
        (('ab', 'ac', 'ab'), '', None),
    ],
)
def test_losses_are_compared_beside_a_control(
    monkeypatch: pytest.MonkeyPatch,
    losses: tuple[str, ...],
    verdict: str,
    differ: int | None,
):
    tapes, hooks = iter(losses), []

    def train(_: object, sides: list[int], hook: object, **how: bool) -> Trained:
        hooks.append(hook)
        assert how == {'deterministic': True}
        return Trained(SimpleNamespace(losses=list(next(tapes))), None)

    monkeypatch.setattr(training, 'train', train)
    (figure,) = training.check_losses()
    assert (figure.verdict, figure.value) == (verdict, differ)
    assert [hook is None for hook in hooks] == [True, True, False]


def test_peaks_are_held_against_torchs_own():
    # a real training on the CPU, with peaks made up
    peaks = iter([9, 2, 2, 2, 7, 3, 3, 3])
    hook = {**HOOK, 'interval': 4}
    trained = train(toy(), [32] * 8, hook, read_peak=lambda: next(peaks))
    evidence = trained.evidence
    assert evidence is not None
    assert [r.iteration for r in evidence.intervals] == [4, 8]
    for off, verdict in ((0, 'met'), (1, 'missed')):
        intervals = [
            replace(record, gpu_mem_peak_bytes=peak)
            for record, peak in zip(evidence.intervals, (9, 7 + off))
        ]
        peaked = Trained(trained.tape, replace(evidence, intervals=intervals))
        figure = training._compare('peaks', peaked)
        assert (figure.verdict, figure.value) == (verdict, off)
    figure = training._compare('peaks', trained)
    assert (figure.verdict, figure.value) == ('missed', None)
    assert 'runs on the CPU' in figure.note


def test_without_cuda_it_says_so_in_a_sentence():
    done = subprocess.run(
        [sys.executable, '-m', 'benchmarks.gpu_check'],
        cwd=ROOT,
        env={**os.environ, 'CUDA_VISIBLE_DEVICES': ''},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, '')
    (line,) = done.stderr.splitlines()
    assert line.startswith('gpu-check needs a CUDA machine: ')


def test_a_check_that_breaks_is_missed_one_without_its_package_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    good = Figure('good', 1.0, target='<= 2', is_met=True)

    def broken() -> list[Figure]:
        raise RuntimeError('CUDA error:\n  launch failure')

    planted = SimpleNamespace(check_idle=broken, check_cost=lambda: [good])
    monkeypatch.setitem(sys.modules, 'benchmarks.gpu_check.events', planted)
    (figure,) = gpu_check.run_check('idle')
    assert figure.verdict == 'missed'
    assert figure.note == 'RuntimeError: CUDA error: launch failure'
    assert gpu_check.run_check('cost') == [good]
    monkeypatch.delitem(sys.modules, 'benchmarks.gpu_check.training')
    monkeypatch.setitem(sys.modules, 'mmengine.dataset', None)
    (figure,) = gpu_check.run_check('losses')
    assert figure.verdict == ''
    assert 'mmengine' in figure.note
    assert capsys.readouterr().out == ''
