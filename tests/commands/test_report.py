from __future__ import annotations

import json
import re
import stat
import sys
from pathlib import Path

import pytest

from fakes.reported import make_full_ranks
from fakes.runs import make_evidence, make_run, render_evidence
from mmgpu_hooks.commands.main import main
from mmgpu_hooks.schema import RunEvidence, UnknownRecord


def write_run(folder: Path, evidence: RunEvidence | None = None) -> Path:
    vis_data = folder / '20260101_000000' / 'vis_data'
    vis_data.mkdir(parents=True)
    text = render_evidence(evidence or make_evidence(run=make_run()))
    (vis_data / 'gpu_efficiency.jsonl').write_text(text)
    return folder


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    return write_run(tmp_path / 'run1')


def files_under(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob('*') if p.is_file()}


def test_a_run_becomes_one_file(run_folder, tmp_path, capsys):
    output = tmp_path / 'out' / 'run1.html'
    assert main(['report', str(run_folder), '-o', str(output)]) == 0
    assert output.read_text().startswith('<!DOCTYPE html>')
    assert 'Data-bound' in output.read_text()
    assert capsys.readouterr().out.startswith(f'Written to {output} (')
    assert files_under(output.parent) == {'run1.html'}
    assert stat.S_IMODE(output.stat().st_mode) & 0o044


def test_several_runs_become_one_file(run_folder, tmp_path, capsys):
    second = write_run(tmp_path / 'run2', make_evidence(data_wait_s=0.4))
    output = tmp_path / 'report.html'
    assert main(['report', str(run_folder), str(second), '-o', str(output)]) == 0
    assert 'run1' in output.read_text()
    assert 'run2' in output.read_text()
    assert '2 run(s)' in capsys.readouterr().out


def test_all_ranks_are_shown(tmp_path):
    ranks = make_full_ranks(3)
    folder = write_run(tmp_path / 'run', ranks[0])
    for rank in ranks[1:]:
        name = f'gpu_efficiency_rank{rank.run.rank}.jsonl'
        path = folder / '20260101_000000' / 'vis_data' / name
        path.write_text(render_evidence(rank))
    output = tmp_path / 'report.html'
    assert main(['report', str(folder), '-o', str(output)]) == 0
    assert 'Rank 2 is the slowest' in output.read_text()


def test_the_same_run_gives_the_same_bytes(run_folder, tmp_path):
    for name in ('a.html', 'b.html'):
        assert main(['report', str(run_folder), '-o', str(tmp_path / name)]) == 0
    assert (tmp_path / 'a.html').read_bytes() == (tmp_path / 'b.html').read_bytes()


def test_an_older_report_is_replaced(run_folder, tmp_path):
    output = tmp_path / 'report.html'
    assert main(['report', str(run_folder), '-o', str(output)]) == 0
    first = output.read_bytes()
    write_run(tmp_path / 'other', make_evidence(data_wait_s=0.01))
    assert main(['report', str(tmp_path / 'other'), '-o', str(output)]) == 0
    assert output.read_bytes() != first


def test_any_other_file_is_kept(run_folder, tmp_path, capsys):
    output = tmp_path / 'config.py'
    output.write_text('model = dict()')
    assert main(['report', str(run_folder), '-o', str(output)]) == 2
    assert output.read_text() == 'model = dict()'
    assert 'found another file' in capsys.readouterr().err


def test_the_output_may_not_be_a_folder(run_folder, tmp_path, capsys):
    assert main(['report', str(run_folder), '-o', str(tmp_path)]) == 2
    assert 'is a folder; name a file in it.' in capsys.readouterr().err


def test_what_cannot_be_written_is_said_and_nothing_is_left(
    run_folder, tmp_path, capsys
):
    (tmp_path / 'file').write_text('')
    output = tmp_path / 'file' / 'report.html'
    assert main(['report', str(run_folder), '-o', str(output)]) == 2
    error = capsys.readouterr().err
    assert error.startswith('mmgpu report: expected to write ')
    assert error.count('\n') == 1


def test_a_report_that_cannot_be_finished_leaves_the_old_one(
    run_folder, tmp_path, monkeypatch
):
    output = tmp_path / 'out' / 'report.html'
    assert main(['report', str(run_folder), '-o', str(output)]) == 0
    before = output.read_bytes()

    def fail(*_):
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr('os.fsync', fail)
    assert main(['report', str(run_folder), '-o', str(output)]) == 2
    assert output.read_bytes() == before
    assert files_under(output.parent) == {'report.html'}


@pytest.mark.parametrize('content', [None, 'garbage\n'])
def test_a_folder_without_evidence_is_refused(tmp_path, capsys, content):
    folder = tmp_path / 'run'
    (folder / 'vis_data').mkdir(parents=True)
    if content is not None:
        (folder / 'vis_data' / 'gpu_efficiency.jsonl').write_text(content)
    output = tmp_path / 'report.html'
    assert main(['report', str(folder), '-o', str(output)]) == 2
    assert 'mmgpu report: ' in capsys.readouterr().err
    assert not output.exists()


def test_one_bad_run_of_several_writes_nothing(run_folder, tmp_path, capsys):
    output = tmp_path / 'report.html'
    gone = str(tmp_path / 'gone')
    assert main(['report', str(run_folder), gone, '-o', str(output)]) == 2
    assert gone in capsys.readouterr().err
    assert not output.exists()


def test_the_log_of_mmengine_alone_gives_a_page_that_says_so(tmp_path):
    vis_data = tmp_path / 'run' / '20260101_000000' / 'vis_data'
    vis_data.mkdir(parents=True)
    lines = [
        json.dumps({'lr': 0.1, 'time': 0.5, 'data_time': 0.3, 'iter': n})
        for n in range(10, 110, 10)
    ]
    (vis_data / 'scalars.json').write_text('\n'.join(lines))
    output = tmp_path / 'report.html'
    assert main(['report', str(tmp_path / 'run'), '-o', str(output)]) == 0
    assert 'only the log of MMEngine' in output.read_text()


def test_pictures_are_written_beside(tmp_path, capsys):
    folder = write_run(tmp_path / 'run', make_full_ranks(1)[0])
    output, plots = tmp_path / 'report.html', tmp_path / 'plots'
    command = ['report', str(folder), '-o', str(output), '--plots', str(plots)]
    assert main(command) == 0
    names = ('ledger', 'timeline', 'what-if', 'transforms', 'memory', 'saves')
    assert files_under(plots) == {f'{name}.svg' for name in names}
    out = capsys.readouterr().out
    assert '8 chart(s) written' in out


def test_other_numbers_of_workers_are_predicted(tmp_path):
    folder = write_run(tmp_path / 'run', make_full_ranks(1)[0])
    output = tmp_path / 'report.html'
    assert main(['report', str(folder), '-o', str(output)]) == 0
    what_if = output.read_text().split('id="what-if"')[1].split('</section>')[0]
    rows = re.findall('<th scope="row">([^<]*)</th><td>([^<]*)</td>', what_if)
    marked = {'2': 'now', '4': 'recommended'}
    assert rows == [(workers, marked.get(workers, '')) for workers in '0123468']


def test_a_run_that_tells_too_little_is_not_predicted(run_folder, tmp_path):
    output = tmp_path / 'report.html'
    assert main(['report', str(run_folder), '-o', str(output)]) == 0
    what_if = output.read_text().split('id="what-if"')[1].split('</section>')[0]
    assert '<p>' in what_if
    assert '<table>' not in what_if


def test_pictures_of_several_runs_have_names_of_their_own(run_folder, tmp_path):
    second = write_run(tmp_path / 'a b' / 'run1')
    plots = tmp_path / 'plots'
    command = ['report', str(run_folder), str(second), '--plots', str(plots)]
    assert main([*command, '-o', str(tmp_path / 'report.html')]) == 0
    assert files_under(plots) == {
        f'{run}-{chart}.svg'
        for run in (f'1-{tmp_path.name}-run1', '2-a-b-run1')
        for chart in ('ledger', 'timeline')
    }


def test_pictures_as_png(run_folder, tmp_path):
    pytest.importorskip('matplotlib', reason='pip install mmgpu_hooks[plots]')
    plots = tmp_path / 'plots'
    command = ['report', str(run_folder), '-o', str(tmp_path / 'report.html')]
    assert main([*command, '--plots', str(plots), '--format', 'png']) == 0
    content = (plots / 'ledger.png').read_bytes()
    assert content.startswith(b'\x89PNG')


def test_without_matplotlib_it_is_said_what_to_install(
    run_folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.setitem(sys.modules, 'matplotlib', None)
    output, plots = tmp_path / 'report.html', tmp_path / 'plots'
    command = ['report', str(run_folder), '-o', str(output), '--plots', str(plots)]
    assert main(command) == 2
    error = capsys.readouterr().err
    assert "pip install 'mmgpu_hooks[plots]'" in error
    assert error.count('\n') == 1
    assert not output.exists()
    assert not plots.exists()


def test_reasons_of_the_evidence_are_shown(tmp_path):
    folder = write_run(tmp_path / 'run')
    path = folder / '20260101_000000' / 'vis_data' / 'gpu_efficiency.jsonl'
    from mmgpu_hooks.schema.lines import encode_line

    record = UnknownRecord(source='loader inside', reason='the workers <b>spawn</b>')
    with path.open('a') as file:
        file.write(encode_line(record).decode())
    output = tmp_path / 'report.html'
    assert main(['report', str(folder), '-o', str(output)]) == 0
    assert 'the workers &lt;b&gt;spawn&lt;/b&gt;' in output.read_text()
