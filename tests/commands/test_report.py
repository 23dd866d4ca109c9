"""Tests that ``mmgpu report`` writes one complete file or none."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from fakes.runs import make_evidence, make_run, write_run
from mmgpu_hooks.commands.main import main


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    return write_run(tmp_path / 'run1', make_evidence(run=make_run()))


@pytest.fixture
def report(tmp_path: Path):
    """Function that writes a report and returns its HTML; ``None`` without a file."""
    output = tmp_path / 'out' / 'report.html'

    def run(*words: object, code: int = 0) -> str | None:
        command = ['report', *map(str, words), '-o', str(output)]
        assert main(command) == code
        return output.read_text() if output.exists() else None

    return run


def files_under(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob('*') if p.is_file()}


def test_a_run_becomes_one_file_the_same_each_time(report, run_folder, tmp_path):
    page = report(run_folder)
    assert page.startswith('<!DOCTYPE html>')
    assert all(word in page for word in ('Data-bound', 'run1'))
    assert files_under(tmp_path / 'out') == {'report.html'}
    mode = (tmp_path / 'out' / 'report.html').stat().st_mode
    assert stat.S_IMODE(mode) & 0o044
    assert report(run_folder) == page
    # an older report is replaced
    second = write_run(tmp_path / 'run2', make_evidence(data_wait_s=0.4))
    assert report(second) != page


def test_any_other_file_is_kept(run_folder, tmp_path, capsys):
    output = tmp_path / 'config.py'
    output.write_text('model = dict()')
    for place in (output, tmp_path, output / 'report.html'):
        assert main(['report', str(run_folder), '-o', str(place)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith('mmgpu report: expected ')
    assert output.read_text() == 'model = dict()'


def test_a_report_that_cannot_be_finished_leaves_the_old_one(
    report, run_folder, tmp_path, monkeypatch
):
    before = report(run_folder)

    def fail(*_):
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr('os.fsync', fail)
    assert report(run_folder, code=2) == before
    assert files_under(tmp_path / 'out') == {'report.html'}
