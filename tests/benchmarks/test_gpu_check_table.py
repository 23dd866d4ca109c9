from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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

ROOT = Path(__file__).resolve().parents[2]
GOOD = judged('memory', '712 MiB', 'within 4 MiB', True, 'total | free')
BAD = judged('cost', '19.0 us', '<= 15 us', False)
SURE = judged('losses', '2 of 24 differ', '0 differ', False, sensitive=False)
NONE = skipped('mapping', 'there is no nvidia-smi')


@pytest.mark.parametrize(
    ('rows', 'strangers', 'code'),
    [
        ([GOOD, NONE], None, 0),
        ([], None, 0),
        ([GOOD, BAD], None, 1),
        ([GOOD, BAD], '31 % of the CPUs', 3),
        ([GOOD, NONE], '31 % of the CPUs', 0),
        ([SURE, BAD], '31 % of the CPUs', 1),  # nobody else can cause that
    ],
)
def test_exit_codes(rows: list[Row], strangers: str | None, code: int):
    assert exit_code(excuse(rows, strangers)) == code


def test_only_what_strangers_may_spoil_is_excused():
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
    monkeypatch.setattr(gpu_check, 'read_strangers', lambda: None)
    monkeypatch.setattr(gpu_check, 'describe_machine', lambda _: [('GPUs', 'H200')])
    monkeypatch.setenv('CUBLAS_WORKSPACE_CONFIG', ':16:8')


@pytest.mark.usefixtures('on_cuda')
def test_a_check_that_breaks_is_a_missed_row_and_the_others_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    def broken() -> list[Row]:
        raise RuntimeError('CUDA error:\n  launch failure')

    monkeypatch.setattr(
        gpu_check, 'checks', lambda: {'nvml': broken, 'cost': lambda: [GOOD]}
    )
    page = tmp_path / 'results' / 'gpu.md'
    assert gpu_check.main(['--output', str(page)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == 'GPUs: H200'
    assert lines[-1] == 'gpu-check: 1 ok, 1 missed (nvml)'
    assert 'CUDA error: launch failure' in page.read_text()


@pytest.mark.usefixtures('on_cuda')
def test_what_was_left_out_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(
        gpu_check, 'checks', lambda: {name: lambda: [GOOD] for name in gpu_check.NAMES}
    )
    assert gpu_check.main(['--only', 'cost', 'idle']) == 0
    out = capsys.readouterr().out
    assert out.endswith('\ngpu-check: 2 ok, 4 skipped\n')
    assert out.count('left out by --only') == 4


def test_every_check_has_a_name():
    pytest.importorskip('mmengine', exc_type=ImportError)
    assert tuple(gpu_check.checks()) == gpu_check.NAMES
