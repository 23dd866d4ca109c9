from __future__ import annotations

import subprocess
import sys
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
)
from fakes.nvml import FakeGpu, FakeNvml
from fakes.nvml.fixtures import fake_nvml, fake_nvml_library

__all__ = ['fake_nvml', 'fake_nvml_library']

ROOT = Path(__file__).resolve().parents[2]
GOOD = judged('memory', '712 MiB', 'within 4 MiB', True, 'total | free')
BAD = judged('cost', '19.0 us', '<= 15 us', False)
SURE = judged('losses', '2 of 24 differ', '0 differ', False, sensitive=False)
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
    monkeypatch.setattr(gpu_check, 'read_other_load', lambda: (None, []))
    monkeypatch.setattr(gpu_check, 'describe_machine', lambda _: [('GPUs', 'H200')])
    monkeypatch.setenv('CUBLAS_WORKSPACE_CONFIG', ':16:8')


@pytest.mark.usefixtures('on_cuda')
def test_a_check_that_breaks_is_a_missed_row_and_the_others_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    def broken() -> list[Row]:
        raise RuntimeError('CUDA error:\n  launch failure')

    planted = SimpleNamespace(check_idle=broken, check_cost=lambda: [GOOD])
    monkeypatch.setitem(sys.modules, 'benchmarks.gpu_check.events', planted)
    page = tmp_path / 'results' / 'gpu.md'
    only = ['--only', 'idle', 'cost']
    assert gpu_check.main([*only, '--output', str(page)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == 'GPUs: H200'
    assert lines[-1] == 'gpu-check: 1 ok, 1 missed, 4 skipped (idle)'
    assert 'CUDA error: launch failure' in page.read_text()


@pytest.mark.usefixtures('on_cuda')
def test_what_was_left_out_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(gpu_check, 'run_check', lambda name: [GOOD])
    assert gpu_check.main(['--only', 'cost', 'idle']) == 0
    out = capsys.readouterr().out
    assert out.endswith('\ngpu-check: 2 ok, 4 skipped\n')
    assert out.count('left out by --only') == 4


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
    assert kept.read_text().endswith('\n\ngpu-check: 6 skipped\n')


def test_a_table_that_could_not_be_kept_is_refused_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    monkeypatch.setattr(gpu_check, 'why_no_cuda', pytest.fail)
    with pytest.raises(SystemExit, match='2'):
        gpu_check.main(['--output', str(tmp_path)])
    assert f'found {tmp_path} (' in capsys.readouterr().err


@pytest.mark.usefixtures('on_cuda')
def test_a_checkout_that_is_read_only_costs_the_kept_table_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    def refuse(*_: object) -> None:
        raise PermissionError(13, 'Permission denied')

    monkeypatch.setattr(gpu_check, 'RESULTS', tmp_path / 'gpu_check.md')
    monkeypatch.setattr(gpu_check, 'run_check', lambda name: [GOOD])
    monkeypatch.setattr(Path, 'write_text', refuse)
    assert gpu_check.main([]) == 0
    out, err = capsys.readouterr()
    assert out.endswith('\ngpu-check: 6 ok\n')
    assert 'the table was not kept: ' in err


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
nvml.SETTLE_S = nvml.MEASURE_S = nvml.MORE_S = 0.3
load.Matmuls = lambda: type('Load', (), {'keep_busy': time.sleep})
sys.exit(check.main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ('hidden', 'reasons', 'codes'),
    [
        ('mmengine', {'peaks': 'mmengine', 'losses': 'mmengine'}, (1, 3)),
        ('msgspec', {'peaks': 'msgspec', 'losses': 'msgspec'}, (1, 3)),
        (
            'psutil pynvml mmengine',
            {
                'other load': 'psutil',
                'nvml': 'nvidia-ml-py',
                'mapping': 'nvidia-ml-py',
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
        [sys.executable, '-c', BARE, '--output', str(page)],
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
        assert rows['utilisation, idle phase: planted'][3] == 'ok'
        assert rows['utilisation, busy phase: planted'][3] in ('missed', 'too busy')
    assert rows['cost of events'][3] == 'skipped'
    # what nobody could measure is not said to be none
    assert ('use of the CPUs is unknown' in done.stdout) == ('psutil' in hidden)
    assert not ('psutil' in hidden and 'none seen' in done.stdout)
