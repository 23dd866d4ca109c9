"""``mmgpu report``: one file, whatever it is written over, or none."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from fakes.compared_runs import write_run
from fakes.reported import make_full_ranks
from fakes.runs import make_evidence, make_run
from mmgpu_hooks.commands.main import main
from mmgpu_hooks.schema.run_folder import EVIDENCE_NAME


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    return write_run(tmp_path / 'run1', make_evidence(run=make_run()))


@pytest.fixture
def full_run(tmp_path: Path) -> Path:
    return write_run(tmp_path / 'run', make_full_ranks(1)[0])


@pytest.fixture
def report(tmp_path: Path):
    """Reports runs; the page, ``None`` when there is none."""
    output = tmp_path / 'out' / 'report.html'

    def run(*words: object, code: int = 0) -> str | None:
        command = ['report', *map(str, words), '-o', str(output)]
        assert main(command) == code
        return output.read_text() if output.exists() else None

    return run


def files_under(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob('*') if p.is_file()}


def test_runs_become_one_file_the_same_each_time(report, run_folder, tmp_path):
    second = write_run(tmp_path / 'run2', make_evidence(data_wait_s=0.4))
    page = report(run_folder, second)
    assert page.startswith('<!DOCTYPE html>')
    assert all(word in page for word in ('Data-bound', 'run1', 'run2'))
    assert files_under(tmp_path / 'out') == {'report.html'}
    mode = (tmp_path / 'out' / 'report.html').stat().st_mode
    assert stat.S_IMODE(mode) & 0o044
    assert report(run_folder, second) == page
    # an older report is replaced
    assert report(run_folder) != page


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


@pytest.mark.parametrize('content', [None, 'garbage\n'])
def test_a_folder_without_evidence_writes_nothing(
    report, run_folder, tmp_path, capsys, content
):
    folder = tmp_path / 'bad'
    folder.mkdir()
    if content is not None:
        (folder / EVIDENCE_NAME).write_text(content)
    assert report(run_folder, folder, code=2) is None
    assert str(folder) in capsys.readouterr().err


def test_charts_are_written_beside(report, full_run, tmp_path, capsys):
    plots = tmp_path / 'plots'
    report(full_run, '--plots', plots)
    names = {path.stem for path in plots.glob('*.svg')}
    assert {'ledger', 'timeline', 'what-if'} <= names
    assert f'{len(names)} chart(s) written' in capsys.readouterr().out
    report(full_run, '--plots', plots, '--format', 'png')
    assert (plots / 'ledger.png').read_bytes().startswith(b'\x89PNG')


def test_without_matplotlib_it_is_said_what_to_install(
    report, run_folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.setitem(sys.modules, 'matplotlib', None)
    plots = tmp_path / 'plots'
    assert report(run_folder, '--plots', plots, code=2) is None
    (line,) = capsys.readouterr().err.splitlines()
    assert "pip install 'mmgpu_hooks[plots]'" in line
    assert not plots.exists()
