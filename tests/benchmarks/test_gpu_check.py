"""Tests ``make gpu-check`` without a GPU: its rows and their verdicts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import zipfile
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fakes.nvml import FakeGpu, FakeNvml

pytest.importorskip('mmengine', exc_type=ImportError)
pytest.importorskip('torch', exc_type=ImportError)

import torch

from benchmarks.gpu_check import check, host, load, longer, mapping, nvml, training
from benchmarks.gpu_check.table import BUSY, MISSED, OK, SKIPPED, Row, judged
from benchmarks.gpu_check.training import Trained

ROOT = Path(__file__).resolve().parents[2]
GOOD = judged('memory', '712 MiB', 'within 4 MiB', True, 'total | free')
BAD = judged('cost', '19.0 us', '<= 15 us', False)


def test_without_cuda_it_says_so_in_a_sentence():
    if torch.cuda.is_available():
        pytest.skip('there is CUDA')
    command = [sys.executable, '-m', 'benchmarks.gpu_check']
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, '')
    assert done.stderr.startswith('gpu-check needs a CUDA machine: ')
    assert len(done.stderr.splitlines()) == 1


@pytest.fixture
def gpu_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The ``gpu_check`` command with fake checks, whose result rows a test can set."""
    before = SimpleNamespace(driver='550', util_pct=None)
    driver = SimpleNamespace(describe_gpu=lambda: before)
    monkeypatch.setitem(sys.modules, 'benchmarks.gpu_check.nvml', driver)
    monkeypatch.setattr(check, 'RESULTS', tmp_path / 'results' / 'gpu_check.md')
    monkeypatch.setattr(check, 'why_no_cuda', lambda: None)
    monkeypatch.setattr(check, 'describe_machine', lambda *_: [('GPUs', 'H200')])
    monkeypatch.setenv('CUBLAS_WORKSPACE_CONFIG', ':16:8')
    faked = SimpleNamespace(found={}, load='', ran=[], page=check.RESULTS)
    monkeypatch.setattr(check, 'read_other_load', lambda gpu_pct: faked.load)

    def run(name: str) -> list[Row]:
        faked.ran.append(name)
        found = faked.found.get(name, [GOOD])
        if isinstance(found, Exception):
            raise found
        return found

    checks = {f'check_{name}': lambda name=name: run(name) for name in check.CHECKS}
    monkeypatch.setattr(check, 'CHECKS', dict.fromkeys(check.CHECKS, ('faked', 'os')))
    module = SimpleNamespace(**checks)
    monkeypatch.setitem(sys.modules, 'benchmarks.gpu_check.faked', module)
    return faked


@pytest.mark.parametrize(
    ('found', 'load', 'code', 'verdicts'),
    [
        ({}, '', 0, '2 ok'),
        ({}, '31 % of the CPUs', 0, '2 ok'),
        ({'cost': [GOOD, BAD]}, '', 1, '2 ok, 1 missed'),
        # other load may have spoiled a time, but not what is lost bit by bit
        ({'cost': [BAD]}, '31 % of the CPUs', 3, '1 ok, 1 too busy'),
        ({'losses': [BAD]}, '31 % of the CPUs', 1, '1 ok, 1 missed'),
        ({'cost': RuntimeError('no\n kernel')}, 'GPU', 1, '1 ok, 1 missed'),
        ({'cost': [], 'losses': ModuleNotFoundError(name='a.b')}, '', 4, '0'),
    ],
)
def test_the_exit_code_tells_met_from_missed_busy_and_nothing_judged(
    gpu_check, capsys, found, load, code, verdicts
):
    gpu_check.found, gpu_check.load = found, load
    assert check.main(['--only', 'cost,losses']) == code
    assert gpu_check.ran == ['losses', 'cost']
    left_out = len(check.CHECKS) - 2
    said = capsys.readouterr().out
    assert said.count('left out') == left_out
    if code == 4:
        assert f'\ngpu-check: {left_out + 1} skipped\n' in said
        assert 'needs a, which is not installed' in said
    else:
        assert f'\ngpu-check: {verdicts}, {left_out} skipped' in said
    assert not gpu_check.page.exists()


def test_the_long_ones_are_asked_for_and_the_others_end_in_time(gpu_check, monkeypatch):
    assert check.main([]) == 0
    assert gpu_check.ran == [name for name in check.CHECKS if name not in check.LONG]
    assert gpu_check.ran[0] == 'nvml'
    page = gpu_check.page.read_text()
    assert '- GPUs: H200\n' in page
    assert '712 MiB  | within 4 MiB | ok      | total \\| free' in page
    gpu_check.ran.clear()
    assert check.main(['--long']) == 0
    assert gpu_check.ran == list(check.CHECKS)
    gpu_check.ran.clear()
    monkeypatch.setattr(check, 'LIMIT_S', -1.0)
    assert check.main([]) == 4
    assert gpu_check.ran == []
    assert 'minutes were over' in gpu_check.page.read_text()


@pytest.mark.parametrize(
    ('words', 'said'),
    [
        (['--only', 'nvml,clocks'], "found {'clocks'}"),
        (['--wheels', 'nowhere'], 'expected .whl files, found none in nowhere'),
    ],
)
def test_bad_arguments_are_refused_with_what_was_found(words, said, capsys):
    with pytest.raises(SystemExit, match='2'):
        check.main(words)
    assert said in capsys.readouterr().err


def write_wheel(folder: Path, name: str, tag: str = 'py3-none-any') -> None:
    """Writes a wheel that contains one small module."""
    wheel = 'Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\n'
    with zipfile.ZipFile(folder / f'{name}-1.0-{tag}.whl', 'w') as file:
        file.writestr(f'{name}.py', "WHAT = 'a wheel'\n")
        info, about = f'{name}-1.0.dist-info', f'Name: {name}\nVersion: 1.0\n'
        file.writestr(f'{info}/METADATA', f'Metadata-Version: 2.1\n{about}')
        file.writestr(f'{info}/WHEEL', f'{wheel}Tag: {tag}\n')
        file.writestr(f'{info}/RECORD', '')


def test_missing_wheels_are_installed_for_this_run(tmp_path, monkeypatch):
    wheels, folder = tmp_path / 'wheels', tmp_path / 'site'
    wheels.mkdir()
    write_wheel(wheels, 'gpu_check_wheel')
    write_wheel(wheels, 'gpu_check_foreign', 'cp27-none-win32')
    # this one is there already
    write_wheel(wheels, 'pytest')
    monkeypatch.setattr(sys, 'path', list(sys.path))
    monkeypatch.setenv('PYTHONPATH', 'before')
    (row,) = check.install_wheels(wheels, str(folder))
    assert (row.check, row.verdict) == ('wheel gpu_check_foreign', 'skipped')
    assert 'not a supported wheel' in row.note
    code = 'import gpu_check_wheel; print(gpu_check_wheel.WHAT)'
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert done.stdout == 'a wheel\n', done.stderr
    assert not (folder / 'pytest.py').exists()
    assert check.version_of('gpu_check_wheel') == '1.0'


# A bare box: some packages cannot be found, and of CUDA there is NVML alone.
BARE = """
import os, sys, time

class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in os.environ['HIDDEN'].split():
            raise ModuleNotFoundError(f'No module named {name!r}', name=name)

sys.meta_path.insert(0, Hide())
from benchmarks.gpu_check import check, load, nvml
check.why_no_cuda = lambda: None
nvml.open_our_gpu = lambda: nvml.open_named(index=0)
nvml.CONSTANT = nvml.WAVES = (nvml.Wave(0.3, 0.0, 1), nvml.Wave(0.0, 0.3, 1))
load.Matmuls = lambda: type('Load', (), {'keep_busy': time.sleep})
sys.exit(check.main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ('hidden', 'codes', 'skipped'),
    [
        ('msgspec', (1, 3), {'losses': 'msgspec'}),
        (
            'psutil pynvml mmengine msgspec',
            (4,),
            {'nvml': 'nvidia-ml-py', 'namespace': 'nvidia-ml-py', 'losses': 'mmengine'},
        ),
    ],
)
def test_a_missing_package_costs_the_rows_that_need_it(
    fake_nvml: FakeNvml, tmp_path: Path, hidden, codes, skipped
):
    fake_nvml.set(FakeGpu(util=(0,)))
    (tmp_path / 'bin').mkdir()
    done = subprocess.run(
        [sys.executable, '-c', BARE, '--only', 'nvml,mapping,namespace,losses'],
        cwd=ROOT,
        env={**fake_nvml.environ(), 'HIDDEN': hidden, 'PATH': str(tmp_path / 'bin')},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode in codes, done.stderr
    assert 'Traceback' not in done.stderr
    lines = [line.split('|')[1:] for line in done.stdout.splitlines()]
    rows = {cells[0].strip(): cells for cells in lines if len(cells) == 6}
    for name, package in skipped.items():
        assert rows[name][3].strip() == SKIPPED
        assert f'{package}' in rows[name][4] and 'not installed' in rows[name][4]
    if 'pynvml' not in hidden:  # a card that is never busy
        named = 'utilisation, {} s of work and {} s of rest: planted'
        assert rows[named.format('0', '0.3')][3].strip() == OK
        assert rows[named.format('0.3', '0')][3].strip() in (MISSED, BUSY)


SMI = """#!/bin/sh
case "$*" in
*utilization.gpu*) while :; do
    echo "$(date +'%Y/%m/%d %H:%M:%S.%3N'), $(cat {util})"
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
    """Fake GPU and nvidia-smi whose utilisation a test sets."""
    util, smi = tmp_path / 'util', tmp_path / 'bin' / 'nvidia-smi'
    smi.parent.mkdir()
    smi.write_text(SMI.format(util=util, first=FakeGpu.uuid))
    smi.chmod(0o755)
    monkeypatch.setenv('PATH', str(smi.parent), prepend=os.pathsep)
    box = SimpleNamespace(busy=100, theirs=None, gpu={})

    def be(percent: int, theirs: int | None, seconds: float) -> None:
        util.write_text(f'{percent if theirs is None else theirs}\n')
        memory, more = (1000 * 2**20, 400 * 2**20), ['clocks 1980 2619']
        facts = {'util': (percent,), 'memory': memory, 'more': more, **box.gpu}
        fake_nvml.set(FakeGpu(**facts))
        time.sleep(seconds)

    box.keep_busy = lambda seconds: be(box.busy, box.theirs, seconds)
    monkeypatch.setattr(load, 'Matmuls', lambda: box)
    clocks: dict[str, Any] = {'time': time.time, 'perf_counter': time.perf_counter}
    clocks |= {'thread_time': time.thread_time, 'sleep': lambda s: be(0, None, s)}
    monkeypatch.setattr(nvml, 'time', SimpleNamespace(**clocks))
    monkeypatch.setattr(
        nvml, 'open_our_gpu', lambda: nvml.open_named(uuid=FakeGpu.uuid)
    )
    waves = (nvml.Wave(0.3, 0.0, 2), nvml.Wave(0.0, 0.3, 2))
    monkeypatch.setattr(nvml, 'CONSTANT', waves)
    monkeypatch.setattr(torch, 'empty', lambda *_, **__: None)
    monkeypatch.setattr(torch.cuda, 'synchronize', lambda: None)
    return box


BUSY_ROW = 'utilisation, 0.3 s of work and 0 s of rest'
IDLE_ROW = 'utilisation, 0 s of work and 0.3 s of rest'
MEMORY_ROW = 'device memory in use: nvidia-smi'


def check_nvml() -> dict[str, Row]:
    return {row.check: row for row in nvml.check_nvml()}


def test_figures_that_agree_are_met(box):
    rows = check_nvml()
    assert rows.pop('NVML thread: CPU').verdict in (OK, MISSED)  # the fake reads a file
    for name in (BUSY_ROW, IDLE_ROW):
        assert {f'{name}: planted', f'{name}: nvidia-smi'} <= {*rows}
    assert MEMORY_ROW in rows
    assert not [row for row in rows.values() if row.verdict != OK]


def test_figures_that_were_never_given_are_missed(box):
    box.gpu = {'util': (), 'memory': None}
    box.keep_busy(0)
    rows = check_nvml()
    for name in (BUSY_ROW, IDLE_ROW, MEMORY_ROW):
        assert rows[name].verdict == MISSED, rows[name]
        assert 'Not Supported' in rows[name].note


@pytest.mark.timing
def test_a_sampler_that_gives_up_is_missed(box, fake_nvml):
    fake_nvml.set(FakeGpu(fail={'util': (15, 1)}))
    box.keep_busy = time.sleep
    rows = check_nvml()
    for name in (BUSY_ROW, 'NVML thread: CPU'):
        assert rows[name].verdict == MISSED, rows[name]
        assert 'GPU is lost' in rows[name].note


def test_figures_that_differ_are_missed(box):
    box.busy, box.theirs = 80, 99
    rows = check_nvml()
    assert rows[f'{BUSY_ROW}: planted'].verdict == MISSED
    assert rows[f'{BUSY_ROW}: nvidia-smi'].verdict == MISSED
    assert '% beside 99.0 %' in rows[f'{BUSY_ROW}: nvidia-smi'].measured


def test_each_spelling_of_a_card_is_held_against_nvidia_smi(box, monkeypatch, tmp_path):
    # from anywhere: the process finds this checkout
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv('PYTHONPATH', raising=False)
    monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
    look_up = 'import benchmarks, mmgpu_hooks; print(\'{"uuid": "GPU-2"}\')'
    monkeypatch.setattr(mapping, 'LOOK_UP', look_up)
    rows = {row.check.partition('=')[2]: row for row in mapping.check_mapping()}
    first = FakeGpu.uuid
    right, wrong = ('1', 'GPU-2', '1,0'), ('0', first, '0,1')
    assert [*rows] == [*right, *wrong]
    assert {rows[spelling].verdict for spelling in right} == {OK}
    assert {rows[spelling].verdict for spelling in wrong} == {MISSED}


@pytest.mark.parametrize(
    ('losses', 'verdict', 'words'),
    [
        (('ab', 'ab', 'ab'), OK, '0 of 2 differ'),
        (('ab', 'ab', 'ac'), MISSED, '1 of 2 differ'),
        (('ab', 'ab', 'a'), MISSED, '1 of 2 differ'),
        (('ab', 'ac', 'ab'), SKIPPED, '-'),
    ],
)
def test_losses_are_compared_beside_a_control(monkeypatch, losses, verdict, words):
    tapes, hooks = iter(2 * losses), []

    def train(_: object, sides: list[int], hook: object, **how: object) -> Trained:
        hooks.append(hook)
        tape = training.Tape()
        tape.losses = list(next(tapes))
        return Trained(tape)

    monkeypatch.setattr(training, 'train', train)
    for row in training.check_losses():
        assert (row.verdict, row.measured) == (verdict, words)
    assert [hook is None for hook in hooks] == 2 * [True, True, False]


@pytest.fixture
def no_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets the memory peak by PyTorch's allocator to 0, as no GPU is used."""
    monkeypatch.setattr(torch.cuda, 'max_memory_allocated', lambda: 0)


@pytest.mark.usefixtures('no_peaks')
def test_what_synchronises_is_found(monkeypatch):
    modes = ['default']
    monkeypatch.setattr(torch.cuda, 'set_sync_debug_mode', modes.append)

    def refuse(*_: object, **__: object) -> None:
        assert modes[-1] == 'error'
        raise RuntimeError('called a synchronizing CUDA operation')

    monkeypatch.setattr(torch, 'ones', refuse)
    (row,) = training.check_sync()
    assert (row.verdict, row.measured) == (OK, '0 source(s)')
    # a source of ours that does
    monkeypatch.setattr('mmgpu_hooks.measure.host.HostMeter.read', refuse)
    (row,) = training.check_sync()
    assert row.verdict == MISSED
    assert 'host: RuntimeError: called a synchronizing' in row.note
    assert modes[-1] == 'default'
    # a torch that lets everything pass
    monkeypatch.setattr(torch, 'ones', lambda *_, **__: torch.zeros(1))
    assert training.check_sync()[0].verdict == SKIPPED


SPENT = {'begin_step': [8e-6] * 110, 'end_step': [6e-6] * 110, 'drain': [0.002]}


@pytest.mark.usefixtures('no_peaks')
def test_what_the_hook_adds_is_measured_in_turns(monkeypatch):
    monkeypatch.setattr(training, 'COST_ITERATIONS', 8)
    assert training.check_cost()[0].verdict == SKIPPED
    monkeypatch.setattr(training, 'timing', lambda *_: nullcontext(SPENT))
    taken = iter([0.0031, 0.0030, 0.0030, 0.0031] * 3)
    monkeypatch.setattr(training, '_iteration_s', lambda trained: next(taken))
    iteration, interval, added = training.check_cost()
    assert (iteration.verdict, iteration.measured) == (OK, '14.00 us median')
    assert (interval.verdict, interval.measured) == (MISSED, '2000.00 us median')
    assert (added.measured, added.target) == ('+100 us', '<= 100 us')


@pytest.mark.parametrize(
    ('inner', 'stall_us', 'share'),
    [
        # four stalls pass; then 40 of 100 twice, a kernel on another stream beside
        ([(0, 60)], 30, 40),
        ([(0, 60), (5, 20)], 30, 40),
        ([(0, 80)], 30, None),
        ([], 30, None),
    ],
)
def test_idle_share_is_the_time_in_stalls_between_kernels(inner, stall_us, share):
    spans = [(n * 100 + a, n * 100 + b) for n in range(7) for a, b in inner]
    assert training.read_idle_pct(spans, stall_us) == share


@pytest.mark.slow
def test_a_profile_without_a_card_has_no_kernels():
    parts, kernels = longer.check_profile()
    assert parts.verdict == OK, parts
    assert kernels.verdict == MISSED
    assert 'layers' in kernels.note


def test_the_changelog_counts_its_groups():
    changes = (Path(check.__file__).parents[2] / 'CHANGELOG.md').read_text()
    assert f'for a real card: {len(check.CHECKS)} groups' in changes


def test_optimize_is_compared_on_a_cpu_as_on_a_card(monkeypatch):
    """Tests that the GPU check of ``optimize`` finds equal results in CPU trainings."""
    monkeypatch.setattr(host, 'KINDS', {'fp32': 'OptimWrapper'})
    (row,) = host.check_optimize()
    assert (row.verdict, row.measured) == (OK, 'the same')
    assert 'param_groups' in row.note and 'ema' in row.note


PROFILED: dict[str, Any] = {
    'uncovered_s': 0.030,
    'plain_step_s': 0.050,
    'kernels': 900.0,
    'bound': 'launches',
    'bound_reason': None,
    'host_parts': {
        'optimizer step': {'plain_s': 0.020, 'optimized_s': 0.005},
        'average': {'plain_s': 0.010, 'optimized_s': 0.006},
    },
}


@pytest.mark.parametrize(
    ('more', 'verdicts'),
    [
        ({}, [OK, MISSED, OK]),
        ({'uncovered_s': None, 'bound_reason': 'no kernels'}, [SKIPPED]),
    ],
)
def test_host_time_without_a_kernel_is_compared_with_and_without_optimize(
    monkeypatch, more, verdicts
):
    monkeypatch.setattr(host, 'start_python', lambda *words: None)
    monkeypatch.setattr(host, 'read_answer', lambda process: {**PROFILED, **more})
    rows = host.check_overhead()
    assert [row.verdict for row in rows] == verdicts
    if not more:
        assert '30.00 ms of a step of 50.00 ms, then 15.00 ms' in rows[-1].measured
