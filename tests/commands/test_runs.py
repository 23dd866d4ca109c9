"""Tests ``mmgpu runs``: lists runs by their newest verdicts, ignoring other files."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import re
import signal
import sys
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from benchmarks.runs import ask_judged, start_dask, write_fleet
from fakes.prepared import make_starved
from fakes.replaced import replace
from fakes.runs import make_evidence, make_interval, make_run, render_evidence
from mmgpu_hooks.adviser.many_runs import judge_all, judge_evidence, open_processes
from mmgpu_hooks.commands import runs as command
from mmgpu_hooks.commands.main import main
from mmgpu_hooks.judge.verdict_names import VERDICTS
from mmgpu_hooks.schema import run_tree
from mmgpu_hooks.schema.lines import encode_line
from mmgpu_hooks.schema.recorded import RecommendedChange, VerdictRecord
from mmgpu_hooks.schema.run_folder import EVIDENCE_NAME
from mmgpu_hooks.show.runs_page import _BY_VERDICT as FAMILIES

ROOT = Path(__file__).resolve().parents[2]


def make_verdict(saved_hours: float | None = 1.0, **fields: Any) -> VerdictRecord:
    """Returns the final verdict record of a run of ten hours on eight GPUs."""
    verdict = VerdictRecord(
        verdict='data_bound_workers' if saved_hours else 'compute_bound',
        confidence='high',
        is_final=True,
        iterations=1000,
        training_hours=10.0,
        gpu_hours=80.0,
        ledger_pct={'data_wait': 54.0, 'step': 46.0},
        changes=(RecommendedChange(key='train_dataloader.num_workers', old=0, new=8),)
        if saved_hours
        else (),
        saved_hours=saved_hours,
    )
    return replace(verdict, **fields)


def lay(folder: Path, *more: VerdictRecord | bytes, **fields: Any) -> Path:
    """Writes a run's evidence file with MMEngine's folder names; returns the path."""
    data = folder / 'vis_data'
    data.mkdir(parents=True)
    content = render_evidence(make_evidence(2, run=make_run(**fields))).encode()
    for part in more:
        content += part if isinstance(part, bytes) else encode_line(part)
    (data / EVIDENCE_NAME).write_bytes(content)
    return data / EVIDENCE_NAME


def names_of(answer: dict[str, Any]) -> list[str]:
    return [row['run'] for row in answer['rows']]


def test_what_wastes_most_comes_first(tmp_path, ask):
    lay(tmp_path / 'a' / '20261101_000000', make_verdict(1.0))
    lay(tmp_path / 'b' / '20261102_000000', make_verdict(4.0))
    lay(tmp_path / 'c' / '20261103_000000', make_verdict(None))
    lay(tmp_path / 'd' / '20261104_000000')
    answer = ask('runs', tmp_path)
    assert names_of(answer) == [
        'b/20261102_000000',
        'a/20261101_000000',
        'c/20261103_000000',
        'd/20261104_000000',
    ]
    first, *_, last = answer['rows']
    assert first['saved_gpu_hours'] == 32.0
    assert first['changes'][0]['new'] == 8
    assert (last['verdict'], last['status']) == (None, 'completed')
    # the end record says so of a run that was not judged
    assert last['training_hours'] == pytest.approx(12 / 3600)
    assert answer['totals']['gpu_hours'] == 240.0
    assert answer['totals']['judged'] == 3
    assert (answer['found'], answer['unreadable']) == (4, 0)


def test_the_newest_verdict_counts_far_behind_it_too(tmp_path, ask):
    # an hour of intervals, and a line that was cut short
    hour = b''.join(encode_line(make_interval(number)) for number in range(400))
    torn = encode_line(make_verdict(9.0))[:-30]
    hourly = make_verdict(2.0, is_final=False)
    lay(tmp_path / 'run', make_verdict(1.0), hourly, hour, torn)
    assert len(hour) > 2**17
    (row,) = ask('runs', tmp_path)['rows']
    assert row['saved_hours'] == 2.0


def test_text_is_narrow_and_says_what_is_missing(tmp_path, capsys):
    for number in range(25):
        lay(tmp_path / f'run{number:02}', make_verdict(1.0 + number))
    lay(tmp_path / 'unjudged')
    assert main(['runs', str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith('26 runs, 2,000 GPU hours, 2,600 of them lost')
    assert max(map(len, out.splitlines())) <= 80
    assert 'run24' in out
    assert 'run04' not in out
    assert '6 rows more' in out
    assert '1 run without a verdict in the evidence: --judge' in out
    assert main(['runs', str(tmp_path), '--top', '26']) == 0
    assert 'run04' in capsys.readouterr().out


def test_csv_has_the_same_figures(tmp_path, ask, capsys):
    lay(tmp_path / '=a', make_verdict(2.5))
    lay(tmp_path / 'b')
    (first, second) = ask('runs', tmp_path)['rows']
    assert main(['runs', str(tmp_path), '--format', 'csv']) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [float(rows[0]['saved_hours']), rows[1]['saved_hours']] == [2.5, '']
    assert rows[0]['data_wait_pct'] == str(first['ledger_pct']['data_wait'])
    assert rows[0]['changes'] == 'train_dataloader.num_workers=8'
    # a spreadsheet would run it
    assert rows[0]['run'] == "'=a"
    assert rows[1]['evidence'] == second['evidence']


def test_filters_by_date_verdict_and_owner_keep_the_right_runs(
    tmp_path, ask, monkeypatch
):
    day_s = 86400.0
    for name, days, saved in (('old', 1.5, 1.0), ('new', 40.5, 2.0), ('ok', 41, None)):
        lay(tmp_path / name, make_verdict(saved), started_unix_s=days * day_s)
    names = names_of(ask('runs', tmp_path, '--since', '1970-02-01'))
    assert names == ['new', 'ok']
    answer = ask('runs', tmp_path, '--verdict', 'data_bound_workers')
    assert (names_of(answer), answer['found']) == (['new', 'old'], 3)
    both = ('--verdict', 'compute_bound', '--verdict', 'data_bound_workers')
    assert len(names_of(ask('runs', tmp_path, *both))) == 3
    owner = ask('runs', tmp_path)['rows'][0]['owner']
    assert len(names_of(ask('runs', tmp_path, '--owner', owner))) == 3
    assert names_of(ask('runs', tmp_path, '--owner', 'nobody-of-this-name')) == []
    assert names_of(ask('runs', tmp_path, '--since', '2w')) == []


def test_links_and_loops_are_followed_once_and_foreign_files_have_reasons(
    tmp_path, ask
):
    scratch, work = tmp_path / 'scratch', tmp_path / 'work'
    lay(scratch / 'far', make_verdict())
    evidence = lay(work / 'near', make_verdict())
    (work / 'linked').symlink_to(scratch)
    (work / 'again').symlink_to(scratch)
    (work / 'up').symlink_to('..')
    (work / 'root').symlink_to('/')
    (work / 'near' / 'self').symlink_to('.')
    (work / 'one').symlink_to('two')
    (work / 'two').symlink_to('one')
    (work / 'gone').symlink_to('nowhere')
    # the same file by another name
    (work / 'copy').mkdir()
    (work / 'copy' / EVIDENCE_NAME).symlink_to(evidence)
    for name in ('empty', 'text', 'pipe', 'folder', '.hidden'):
        (work / name).mkdir()
    (work / 'empty' / EVIDENCE_NAME).touch()
    (work / 'text' / EVIDENCE_NAME).write_bytes(b'\xff{"kind":"run"\n' * 9)
    os.mkfifo(work / 'pipe' / EVIDENCE_NAME)
    (work / 'folder' / EVIDENCE_NAME).mkdir()
    lay(work / '.hidden' / 'run', make_verdict())
    (work / 'notes.txt').write_text('mine')
    answer = ask('runs', work)
    judged = [row for row in answer['rows'] if row['verdict']]
    assert len(judged) == 2
    assert {Path(row['run']).name for row in judged} <= {'near', 'copy', 'far'}
    failed = {row['run']: row['reason'] for row in answer['rows'] if row['reason']}
    assert set(failed) == {'empty', 'text', 'pipe', 'folder'}
    assert 'a pipe' in failed['pipe']


def test_folders_that_may_not_be_read_are_counted(tmp_path, ask, capsys, monkeypatch):
    lay(tmp_path / 'mine', make_verdict())
    lay(tmp_path / 'theirs', make_verdict())
    listed = os.scandir

    def scandir(folder):
        if Path(folder).name == 'theirs':
            raise PermissionError(13, 'Permission denied', folder)
        return listed(folder)

    monkeypatch.setattr(run_tree.os, 'scandir', scandir)
    answer = ask('runs', tmp_path)
    assert (names_of(answer), answer['unreadable']) == (['mine'], 1)
    assert answer['first_unreadable'] == f'{tmp_path}/theirs (Permission denied)'
    assert main(['runs', str(tmp_path)]) == 0
    assert '1 place could not be read, such as' in capsys.readouterr().out
    assert main(['runs', str(tmp_path / 'theirs')]) == 2
    assert 'Permission denied' in capsys.readouterr().err


BAD = {
    'gone': 'found nothing there',
    'empty': 'found none; train with the hook',
    'run --since 2026-13-01': "found '2026-13-01'",
    'run --since yesterday': 'a day as 2026-11-01',
    'run --verdict data-bound': 'expected data_bound',
    'run --top 0': '--top',
    'run -j 2': 'expected --judge',
    'run --judge -j 2 --dask tcp://x:1': 'found both',
    'run --page config.py': 'found another file',
}


@pytest.mark.parametrize('line', BAD)
def test_bad_input_is_one_sentence(line, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lay(tmp_path / 'run')
    (tmp_path / 'empty').mkdir()
    (tmp_path / 'config.py').write_text('model = dict()')
    assert main(['runs', *line.split()]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count('\n')) == ('', 1)
    assert BAD[line] in err
    assert (tmp_path / 'config.py').read_text() == 'model = dict()'


def test_dask_that_is_missing_or_does_not_answer(tmp_path, capsys, monkeypatch):
    lay(tmp_path / 'run')
    monkeypatch.setitem(sys.modules, 'distributed', None)
    assert main(['runs', str(tmp_path), '--judge', '--dask', 'tcp://x:1']) == 2
    assert "pip install 'mmgpu_hooks[dask]'" in capsys.readouterr().err


@pytest.fixture
def unjudged(tmp_path) -> list[str]:
    """Paths of three evidence files without a verdict, one of them damaged."""
    paths = []
    for name in ('a', 'b', 'c'):
        path = lay(tmp_path / name)
        path.write_text(render_evidence(make_starved()))
        paths.append(str(path))
    Path(paths[-1]).write_text(Path(paths[-1]).read_text() * 2)
    return paths


def test_processes_judge_what_has_no_verdict(unjudged, tmp_path, ask):
    lay(tmp_path / 'judged', make_verdict())
    before = [Path(path).read_bytes() for path in unjudged]
    rows = {row['run']: row for row in ask('runs', tmp_path, '--judge', '-j2')['rows']}
    expected = judge_evidence(unjudged[0])
    for name in ('a', 'b'):
        assert rows[name]['verdict'] == expected.verdict == 'data_bound_workers'
        assert rows[name]['saved_hours'] == expected.saved_hours > 0
        assert rows[name]['is_judged_now']
    assert rows['judged']['is_judged_now'] is False
    assert 'found 2 runs' in rows['c']['reason']
    # the hook alone writes there
    assert [Path(path).read_bytes() for path in unjudged] == before


class Breaking(ThreadPoolExecutor):
    """Executor that breaks after a number of tasks, as if a process had been killed."""

    def __init__(self, answers: int) -> None:
        super().__init__(1)
        self.answers = answers

    def submit(self, *words: Any, **more: Any) -> Future[Any]:
        self.answers -= 1
        if self.answers < 0:
            raise BrokenExecutor('a process was terminated abruptly')
        return super().submit(*words, **more)


def test_a_pool_that_breaks_is_made_anew(unjudged):
    pools = iter([Breaking(0), Breaking(9)])
    judged = {
        found.evidence: found for found in judge_all(unjudged, lambda: next(pools))
    }
    assert [judged[path].verdict is not None for path in unjudged] == [
        True,
        True,
        False,
    ]
    left = list(judge_all(unjudged, lambda: Breaking(0)))
    assert {run.reason for run in left} == {
        'the processes that judge were killed 3 times.'
    }


def die(path: str) -> VerdictRecord:
    os._exit(9)


@pytest.mark.slow
def test_a_process_that_is_killed_takes_no_other_run_with_it(unjudged, monkeypatch):
    monkeypatch.setattr('mmgpu_hooks.adviser.many_runs.judge_evidence', die)
    judged = list(judge_all(unjudged[:1], lambda: open_processes(1)))
    assert 'was killed' in (judged[0].reason or '')


@pytest.mark.slow
def test_a_dask_cluster_judges_alike_with_a_worker_killed_midway(tmp_path):
    pytest.importorskip('distributed', reason='needs: pip install distributed')
    write_fleet(tmp_path, 40, has_verdict=False)
    ours = ask_judged(tmp_path, '-j', '2')
    with start_dask(2) as cluster:
        theirs = ask_judged(tmp_path, '--dask', cluster.address, killed_in=cluster)
        assert cluster.workers[0].wait(10) == -signal.SIGKILL
    assert ours == theirs
    assert sum(row['verdict'] is not None for row in ours) >= 39


def test_the_queries_of_the_page_on_duckdb_say_the_same(tmp_path, ask, monkeypatch):
    duckdb = pytest.importorskip('duckdb', reason='needs: pip install duckdb')
    monkeypatch.chdir(tmp_path)
    write_fleet(Path('work_dirs'), 70, has_verdict=True)
    hourly = make_verdict(2.0, is_final=False)
    lay(Path('work_dirs', 'killed'), hourly, make_verdict(3.0), b'{"kind":"inter')
    lay(Path('work_dirs', 'unjudged'))
    page = (ROOT / 'docs' / 'en' / 'duckdb.md').read_text()
    table, by_verdict, by_change, parquet = re.findall(r'```sql\n(.*?)```', page, re.S)
    answer = ask('runs', 'work_dirs')
    rows = {row['evidence']: row for row in answer['rows']}
    con = duckdb.connect()
    con.execute(table)
    found = con.execute('select * from runs')
    names = [column[0] for column in found.description]
    records = [dict(zip(names, values)) for values in found.fetchall()]
    assert {record['evidence'] for record in records} == {*rows}
    for record in records:
        row = rows[record['evidence']]
        assert record['verdict'] == row['verdict']
        assert json.loads(record['changes'] or '[]') == row['changes']
        assert record['data_wait_pct'] == row['ledger_pct'].get('data_wait')
        for name in ('started_unix_s', 'hostname', 'status', 'saved_hours'):
            assert record[name] == row[name], name
    sums = con.execute(by_verdict).fetchall()
    saved = sum(hours or 0.0 for *_, hours in sums)
    assert saved == pytest.approx(answer['totals']['saved_hours'])
    assert sum(count for _, count, *_ in sums) == answer['totals']['runs']
    changes = sum(len(row['changes']) for row in rows.values())
    assert sum(count for *_, count in con.execute(by_change).fetchall()) == changes
    con.execute(parquet)
    again = con.execute("select count(*), sum(saved_hours) from 'runs.parquet'")
    assert again.fetchone() == (len(rows), pytest.approx(saved))


def test_every_verdict_has_a_colour():
    assert {*VERDICTS} - {*FAMILIES} == {'not_enough_evidence'}


def test_the_page_escapes_names_and_has_a_table_that_sorts(tmp_path, capsys):
    lay(tmp_path / 'w' / '<script>alert(1)<', make_verdict())
    lay(tmp_path / 'w' / 'b', make_verdict(None))
    page = tmp_path / 'pages' / 'runs.html'
    for _ in range(2):
        assert main(['runs', str(tmp_path / 'w'), '--page', str(page)]) == 0
    assert f'written to {page}' in capsys.readouterr().err
    text = page.read_text()
    assert text.count('<script>') == 1
    assert '&lt;script&gt;alert(1)&lt;' in text
    assert 'class="sortable"' in text
    assert (
        'aria-label="GPU hours by verdict over 1 day: compute-bound 80, data-' in text
    )
    (script,) = re.findall('<script>(.*?)</script>', text, re.S)
    assert hash_of(script) in text.partition('</head>')[0]


def hash_of(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"script-src 'sha256-{digest}'"


def test_a_second_training_of_one_runner_is_a_run_of_its_own(tmp_path, ask):
    evidence = lay(tmp_path / 'run', make_verdict(1.0))
    second = evidence.with_name('gpu_efficiency.2.jsonl')
    second.write_bytes(evidence.read_bytes() + encode_line(make_verdict(5.0)))
    evidence.with_name('gpu_efficiency_rank1.jsonl').write_bytes(b'other')
    names = names_of(ask('runs', tmp_path))
    assert names == ['run/gpu_efficiency.2.jsonl', 'run']
    assert names_of(ask('runs', evidence)) == [str(tmp_path / 'run')]


def test_a_job_asks_for_the_processes_that_it_starts():
    count = command._count_cpus
    given = {'work_dirs': (), 'page': None}
    assert count({**given, 'jobs': 32}) == 32
    assert count({**given, 'jobs': None}) is None


@pytest.mark.parametrize('words', [[], ['--judge', '--dask', 'tcp://x']])
def test_what_is_no_work_for_a_job_is_said_before_slurm_is_asked(
    words, tmp_path, monkeypatch, capsys
):
    # no SLURM is there
    monkeypatch.setenv('PATH', str(tmp_path))
    assert main(['runs', str(tmp_path), *words, '--slurm=-c2']) == 2
    assert '--slurm: expected --judge' in capsys.readouterr().err


class Fragile(ThreadPoolExecutor):
    """Executor whose task for the second run fails, as if its process were killed."""

    def submit(self, *words: Any, **_: Any) -> Future[Any]:
        _judge, evidence = words
        future: Future[Any] = Future()
        if evidence == '1':
            future.set_exception(BrokenExecutor())
        else:
            future.set_result(make_verdict())
        return future


def test_one_run_that_kills_its_process_costs_no_other_its_verdict():
    runs = list(map(str, range(600)))
    judged = {found.evidence: found for found in judge_all(runs, lambda: Fragile(1))}
    assert len(judged) == len(runs)
    assert 'was killed twice' in (judged.pop('1').reason or '')
    assert all(found.verdict is not None for found in judged.values())
