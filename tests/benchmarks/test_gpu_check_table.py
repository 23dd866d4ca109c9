from __future__ import annotations

import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.gpu_check import check as gpu_check
from benchmarks.gpu_check.table import (
    BUSY,
    MISSED,
    OK,
    Row,
    excuse,
    exit_code,
    judged,
    render_markdown,
    render_text,
    skipped,
    summarise,
    within,
)
from fakes.nvml import FakeGpu, FakeNvml
from fakes.nvml.fixtures import fake_nvml, fake_nvml_library

__all__ = ['fake_nvml', 'fake_nvml_library']

ROOT = Path(__file__).resolve().parents[2]
GOOD = judged('memory', '712 MiB', 'within 4 MiB', True, 'total | free')
BAD = judged('cost', '19.0 us', '<= 15 us', False)
SURE = replace(judged('losses', '2 of 24 differ', '0 differ', False), sensitive=False)
ALL = len(gpu_check.CHECKS)
NONE = skipped('mapping', 'there is no nvidia-smi')


@pytest.mark.parametrize(
    ('rows', 'other_load', 'code'),
    [
        ([GOOD, NONE], None, 0),
        ([NONE, NONE], None, 4),
        ([], None, 4),
        ([GOOD, BAD], None, 1),
        ([GOOD, BAD], '31 % of the CPUs', 3),
        ([GOOD, NONE], '31 % of the CPUs', 0),
        ([SURE, BAD], '31 % of the CPUs', 1),  # nobody else can cause that
    ],
)
def test_exit_codes(rows: list[Row], other_load: str | None, code: int):
    assert exit_code(excuse(rows, other_load)) == code


def test_only_what_other_load_may_spoil_is_excused():
    rows = excuse([GOOD, BAD, SURE], 'somebody')
    assert [row.verdict for row in rows] == [OK, BUSY, MISSED]


def test_the_table_has_a_row_each_and_its_notes():
    assert render_text([GOOD, BAD, NONE]).splitlines() == [
        'check    measured  target        verdict',
        '-------  --------  ------------  -------',
        'memory   712 MiB   within 4 MiB  ok',
        '    total | free',
        'cost     19.0 us   <= 15 us      missed',
        'mapping  -         -             skipped',
        '    there is no nvidia-smi',
    ]


def test_the_page_says_where_it_was_measured():
    page = render_markdown([GOOD, BAD], [('GPUs', 'H200'), ('date', '2026-01-02')])
    assert '- GPUs: H200\n- date: 2026-01-02\n' in page
    assert '| memory | 712 MiB | within 4 MiB | ok | total \\| free |' in page
    assert page.endswith('\n\ngpu-check: 1 ok, 1 missed (cost)\n')


def test_the_summary_is_one_line():
    assert summarise([GOOD, GOOD, NONE]) == 'gpu-check: 2 ok, 1 skipped'
    assert summarise([]) == 'gpu-check: nothing measured'


def test_without_cuda_it_says_so_in_a_sentence():
    torch = pytest.importorskip('torch', exc_type=ImportError)
    if torch.cuda.is_available():
        pytest.skip('there is CUDA')
    done = subprocess.run(
        [sys.executable, '-m', 'benchmarks.gpu_check'],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, '')
    assert done.stderr.startswith('gpu-check needs a CUDA machine: ')
    assert len(done.stderr.splitlines()) == 1


@pytest.fixture
def on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, 'why_no_cuda', lambda: None)
    monkeypatch.setattr(gpu_check, 'read_other_load', lambda gpu_pct: (None, []))
    monkeypatch.setattr(gpu_check, 'describe_machine', lambda *_: [('GPUs', 'H200')])
    nvml = SimpleNamespace(describe_gpu=lambda: ('550', None))
    monkeypatch.setitem(sys.modules, 'benchmarks.gpu_check.nvml', nvml)
    monkeypatch.setenv('CUBLAS_WORKSPACE_CONFIG', ':16:8')


@pytest.mark.usefixtures('on_cuda')
def test_a_check_that_breaks_is_a_missed_row_and_the_others_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    def broken() -> list[Row]:
        raise RuntimeError('CUDA error:\n  launch failure')

    planted = SimpleNamespace(check_idle=broken, check_copies=lambda: [GOOD])
    monkeypatch.setitem(sys.modules, 'benchmarks.gpu_check.alone', planted)
    page = tmp_path / 'results' / 'gpu.md'
    only = ['--only', 'idle,copies']
    assert gpu_check.main([*only, '--output', str(page)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == 'GPUs: H200'
    assert lines[-1] == f'gpu-check: 1 ok, 1 missed, {ALL - 2} skipped (idle)'
    assert 'CUDA error: launch failure' in page.read_text()


@pytest.mark.usefixtures('on_cuda')
def test_what_was_left_out_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(gpu_check, 'run_check', lambda name: [GOOD])
    assert gpu_check.main(['--only', 'cost,idle']) == 0
    out = capsys.readouterr().out
    assert out.endswith(f'\ngpu-check: 2 ok, {ALL - 2} skipped\n')
    assert out.count('left out') == ALL - 2


@pytest.mark.usefixtures('on_cuda')
def test_the_table_of_all_checks_is_kept_and_one_of_some_only_on_demand(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    assert gpu_check.RESULTS == ROOT / 'benchmarks' / 'results' / 'gpu_check.md'
    kept = tmp_path / 'results' / 'gpu_check.md'
    monkeypatch.setattr(gpu_check, 'RESULTS', kept)
    monkeypatch.setattr(gpu_check, 'run_check', lambda name: [NONE])
    assert gpu_check.main(['--only', 'cost']) == 4
    assert not kept.exists()
    assert gpu_check.main([]) == 4
    assert kept.read_text().endswith(f'\n\ngpu-check: {ALL} skipped\n')


def test_a_table_that_could_not_be_kept_is_refused_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    monkeypatch.setattr(gpu_check, 'why_no_cuda', pytest.fail)
    with pytest.raises(SystemExit, match='2'):
        gpu_check.main(['--output', str(tmp_path)])
    assert f'found {tmp_path}\n' in capsys.readouterr().err


@pytest.mark.usefixtures('on_cuda')
def test_a_checkout_that_is_read_only_costs_the_kept_table_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    (tmp_path / 'results').touch()
    monkeypatch.setattr(gpu_check, 'RESULTS', tmp_path / 'results' / 'gpu_check.md')
    monkeypatch.setattr(gpu_check, 'run_check', lambda name: [GOOD])
    assert gpu_check.main([]) == 0
    out, err = capsys.readouterr()
    assert out.endswith(f'\ngpu-check: {ALL - 3} ok, 3 skipped\n')
    assert 'the table was not kept: ' in err


@pytest.mark.parametrize(
    ('words', 'said'),
    [
        (['--only', 'nvml,clocks'], "found {'clocks'}"),
        (['--wheels', 'nowhere'], 'expected .whl files, found none in nowhere'),
    ],
)
def test_words_that_are_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit, match='2'):
        gpu_check.main(words)
    assert said in capsys.readouterr().err


@pytest.mark.usefixtures('on_cuda')
def test_the_long_ones_are_asked_for_and_the_others_end_in_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    ran: list[str] = []
    monkeypatch.setattr(gpu_check, 'RESULTS', tmp_path / 'gpu_check.md')
    monkeypatch.setattr(
        gpu_check, 'run_check', lambda name: [ran.append(name), GOOD][1:]
    )
    assert gpu_check.main([]) == 0
    assert ran == [name for name in gpu_check.CHECKS if name not in gpu_check.LONG]
    assert ran[0] == 'nvml'
    ran.clear()
    assert gpu_check.main(['--long']) == 0
    assert ran == list(gpu_check.CHECKS)
    ran.clear()
    monkeypatch.setattr(gpu_check, 'LIMIT_S', -1.0)
    assert gpu_check.main([]) == 4
    assert ran == []
    assert 'minutes were over' in gpu_check.RESULTS.read_text()


@pytest.mark.parametrize(
    ('ours', 'verdict', 'measured'),
    [
        (51.0, OK, '51.0 % beside 50.0 %'),
        (56.0, MISSED, '56.0 % beside 50.0 %'),
        (None, MISSED, 'unknown beside 50.0 %'),
    ],
)
def test_a_figure_beside_the_truth(ours: float | None, verdict: str, measured: str):
    row = within('share', ours, 50.0, 5.0)
    assert (row.verdict, row.measured, row.target) == (verdict, measured, 'within 5 %')


def write_wheel(folder: Path, name: str, tag: str = 'py3-none-any') -> None:
    """A wheel with one module that says what it is."""
    wheel = 'Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\n'
    with zipfile.ZipFile(folder / f'{name}-1.0-{tag}.whl', 'w') as file:
        file.writestr(f'{name}.py', "WHAT = 'a wheel'\n")
        info, about = f'{name}-1.0.dist-info', f'Name: {name}\nVersion: 1.0\n'
        file.writestr(f'{info}/METADATA', f'Metadata-Version: 2.1\n{about}')
        file.writestr(f'{info}/WHEEL', f'{wheel}Tag: {tag}\n')
        file.writestr(f'{info}/RECORD', '')


def test_missing_wheels_are_installed_for_this_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    wheels, folder = tmp_path / 'wheels', tmp_path / 'site'
    wheels.mkdir()
    write_wheel(wheels, 'gpu_check_wheel')
    write_wheel(wheels, 'gpu_check_foreign', 'cp27-none-win32')
    # this one is there already
    write_wheel(wheels, 'pytest')
    monkeypatch.setattr(sys, 'path', list(sys.path))
    monkeypatch.setenv('PYTHONPATH', 'before')
    (row,) = gpu_check.install_wheels(wheels, str(folder))
    assert (row.check, row.verdict) == ('wheel gpu_check_foreign', 'skipped')
    assert 'not a supported wheel' in row.note
    code = 'import gpu_check_wheel; print(gpu_check_wheel.WHAT)'
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert done.stdout == 'a wheel\n', done.stderr
    assert not (folder / 'pytest.py').exists()
    assert gpu_check.version_of('gpu_check_wheel') == '1.0'


# A bare box: some packages cannot be found, and of CUDA there is NVML alone.
BARE = """
import os, sys, time

class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in os.environ['HIDDEN'].split():
            raise ModuleNotFoundError(f'No module named {name!r}', name=name)

sys.meta_path.insert(0, Hide())
from benchmarks.gpu_check import check, load, nvml
from mmgpu_hooks.measure.gpu import open_gpu
check.why_no_cuda = lambda: None
nvml.open_our_gpu = lambda: open_gpu(index=0, environ={})
nvml.CONSTANT = nvml.WAVES = ((0.3, 0.0, 1), (0.0, 0.3, 1))
load.Matmuls = lambda: type('Load', (), {'keep_busy': time.sleep})
sys.exit(check.main(sys.argv[1:]))
"""
ONLY = ['--only', 'nvml,mapping,namespace,idle,peaks,losses']


@pytest.mark.parametrize(
    ('hidden', 'reasons', 'codes'),
    [
        ('mmengine msgspec', {'peaks': 'mmengine', 'losses': 'mmengine'}, (1, 3)),
        ('msgspec', {'peaks': 'msgspec', 'losses': 'msgspec'}, (1, 3)),
        (
            'psutil pynvml mmengine msgspec',
            {
                'other load': 'psutil',
                'nvml': 'nvidia-ml-py',
                'namespace': 'nvidia-ml-py',
                'peaks': 'mmengine',
                'losses': 'mmengine',
            },
            (4,),
        ),
    ],
)
def test_a_missing_package_costs_the_rows_that_need_it(
    fake_nvml: FakeNvml,
    tmp_path: Path,
    hidden: str,
    reasons: dict[str, str],
    codes: tuple[int, ...],
):
    pytest.importorskip('torch', exc_type=ImportError)
    fake_nvml.set(FakeGpu(util=(0,)))
    page = tmp_path / 'gpu.md'
    (tmp_path / 'bin').mkdir()
    done = subprocess.run(
        [sys.executable, '-c', BARE, *ONLY, '--output', str(page)],
        cwd=ROOT,
        env={**fake_nvml.environ(), 'HIDDEN': hidden, 'PATH': str(tmp_path / 'bin')},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode in codes, done.stderr
    assert 'Traceback' not in done.stderr
    lines = [line.split(' | ') for line in page.read_text().splitlines()]
    rows = {cells[0][2:]: cells for cells in lines if len(cells) == 5}
    for check, package in reasons.items():
        assert rows[check][3] == 'skipped'
        assert package in rows[check][4]
        assert 'not installed' in rows[check][4]
    if 'pynvml' not in hidden:  # a card that is never busy
        work, rest = ('0.3', '0'), ('0', '0.3')
        named = 'utilisation, {} s of work and {} s of rest: planted'
        assert rows[named.format(*rest)][3] == 'ok'
        assert rows[named.format(*work)][3] in ('missed', 'too busy')
    assert rows['idle share from events, no stall'][3] == 'skipped'
    # what nobody could measure is not said to be none
    assert ('use of the CPUs is unknown' in done.stdout) == ('psutil' in hidden)
    assert not ('psutil' in hidden and 'none seen' in done.stdout)
