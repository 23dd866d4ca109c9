"""``mmgpu runs``: many runs in one list, by what they waste."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Future
from pathlib import Path
from typing import Any

import pytest

from benchmarks.runs import make_verdict, start_dask, write_fleet
from mmgpu_hooks.commands.main import main
from mmgpu_hooks.commands.runs import judge_rows
from mmgpu_hooks.schema.lines import encode_line
from mmgpu_hooks.schema.many_runs import RunRow
from mmgpu_hooks.schema.run_folder import EVIDENCE_NAME

FLEET = 8


@pytest.fixture
def fleet(tmp_path) -> Path:
    """Eight runs of eight users, each with a verdict; every fourth wastes nothing."""
    write_fleet(tmp_path / 'work_dirs', FLEET, has_verdict=True)
    return tmp_path / 'work_dirs'


def evidence_in(folder: Path) -> list[Path]:
    return sorted(folder.rglob(EVIDENCE_NAME))


def rows_of(answer: dict[str, Any]) -> list[dict[str, Any]]:
    return answer['rows']


def test_those_that_waste_most_come_first(ask, fleet):
    answer = ask('runs', fleet)
    saved = [row['saved_gpu_hours'] for row in rows_of(answer)]
    known = [hours for hours in saved if hours is not None]
    assert known == sorted(known, reverse=True)
    assert saved[len(known) :] == [None] * (FLEET - len(known))
    assert (answer['found'], answer['totals']['judged']) == (FLEET, FLEET)
    assert answer['totals']['saved_gpu_hours'] == pytest.approx(sum(known))
    worst = rows_of(answer)[0]
    assert worst['changes'] == [
        {'key': 'train_dataloader.num_workers', 'old': 0, 'new': 8}
    ]


def test_as_text_the_first_rows_and_what_to_do(fleet, capsys):
    assert main(['runs', str(fleet), '--top', '2']) == 0
    out = capsys.readouterr().out
    assert f'{FLEET} runs' in out and 'GPU hours' in out
    assert out.count('num_workers') == 2
    assert f'{FLEET - 2} rows more: --top {FLEET} prints all' in ' '.join(out.split())


def test_csv_has_a_line_a_run_and_no_formula(fleet, capsys):
    evil = fleet / '=cmd'
    (fleet / 'user0').rename(evil)
    assert main(['runs', str(fleet), '--format', 'csv']) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(rows) == FLEET
    assert any(row['run'].startswith("'=cmd") for row in rows)
    assert float(rows[0]['data_wait_pct']) == pytest.approx(54.1)


@pytest.mark.parametrize(
    ('words', 'count'),
    [
        (('--verdict', 'compute_bound'), 2),
        (('--verdict', 'compute_bound', '--verdict', 'save_bound'), 4),
        (('--since', '2000-01-01'), FLEET),
        (('--since', '2100-01-01'), 0),
        (('--owner', 'nobody'), 0),
    ],
    ids=['a verdict', 'two verdicts', 'a day before', 'a day after', 'another user'],
)
def test_filters_leave_the_others_out(ask, fleet, words, count):
    answer = ask('runs', fleet, *words)
    assert (len(rows_of(answer)), answer['found']) == (count, FLEET)


@pytest.mark.parametrize(
    ('words', 'said'),
    [
        (('--since', 'yesterday'), 'expected a day as 2026-11-01'),
        (('--since', '2026-02-31'), '2026-02-31'),
        (('--verdict', 'databound'), 'expected data_bound'),
        (('--jobs', '2'), 'expected --judge beside --jobs and --dask'),
        (('--judge', '--jobs', '0'), '--jobs'),
        (('--judge', '--jobs', '2', '--dask', 'tcp://a:1'), 'leave one out'),
    ],
    ids=[
        'since words',
        'since no day',
        'verdict misspelt',
        'jobs alone',
        'no job',
        'two engines',
    ],
)
def test_what_cannot_be_meant_is_one_sentence(fleet, capsys, words, said):
    assert main(['runs', str(fleet), *words]) == 2
    err = ' '.join(capsys.readouterr().err.split())
    assert said in err and 'Traceback' not in err


@pytest.mark.parametrize(
    ('name', 'said'),
    [('nothing', 'found nothing there'), ('empty', 'found none; train with the hook')],
)
def test_a_folder_without_runs_is_one_sentence(tmp_path, capsys, name, said):
    (tmp_path / 'empty').mkdir()
    assert main(['runs', str(tmp_path / name)]) == 2
    assert said in ' '.join(capsys.readouterr().err.split())


def test_odd_files_and_links_cost_no_other_run(ask, fleet):
    first, second, third, *_ = evidence_in(fleet)
    first.write_bytes(first.read_bytes() + b'{"kind":"verdict","verd')
    second.write_bytes(b'\0' * 4096)
    third.unlink()
    os.mkfifo(third)
    (fleet / 'loop').symlink_to(fleet)
    (fleet / 'again').symlink_to(first.parents[1])
    (fleet / 'nowhere').symlink_to(fleet / 'gone')
    (fleet / 'a').symlink_to(fleet / 'b')
    (fleet / 'b').symlink_to(fleet / 'a')
    answer = ask('runs', fleet)
    rows = rows_of(answer)
    assert len(rows) == FLEET
    assert answer['unreadable'] == 2
    reasons = [row['reason'] for row in rows if row['reason']]
    assert sum('found "a pipe"' in reason for reason in reasons) == 1
    assert sum('damaged or not ours' in reason for reason in reasons) == 1
    # the verdict before the torn line counts
    assert answer['totals']['judged'] == FLEET - 2


def test_the_newest_verdict_counts(ask, tmp_path):
    write_fleet(tmp_path, 1, has_verdict=True)
    (path,) = evidence_in(tmp_path)
    path.write_bytes(path.read_bytes() + encode_line(make_verdict(1)))
    (row,) = rows_of(ask('runs', tmp_path))
    assert (row['verdict'], row['changes']) == ('compute_bound', [])


def test_the_page_has_a_table_that_sorts(fleet, tmp_path, capsys):
    page = tmp_path / 'runs.html'
    assert main(['runs', str(fleet), '--page', str(page)]) == 0
    assert f'written to {page}' in capsys.readouterr().err
    text = page.read_text()
    assert text.count('num_workers') >= 6
    assert '<svg' in text and 'addEventListener' in text
    # nothing is fetched when it is opened
    assert 'src="http' not in text and 'href="http' not in text


@pytest.fixture(scope='module')
def unjudged(tmp_path_factory) -> Path:
    """Runs without a verdict in their evidence."""
    folder = tmp_path_factory.mktemp('unjudged')
    write_fleet(folder, FLEET, has_verdict=False)
    return folder


@pytest.fixture(scope='module')
def judged(unjudged) -> list[dict[str, Any]]:
    """Their rows, judged by two processes."""
    return json.loads(_capture('runs', str(unjudged), '--judge', '-j', '2'))['rows']


def _capture(*words: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main([*words, '--format', 'json']) == 0
    return out.getvalue()


def test_runs_without_a_verdict_say_so_and_are_judged_on_request(
    ask, unjudged, judged, capsys
):
    rows = rows_of(ask('runs', unjudged))
    assert [row['verdict'] for row in rows] == [None] * FLEET
    assert main(['runs', str(unjudged)]) == 0
    said = ' '.join(capsys.readouterr().out.split())
    assert f'{FLEET} runs without a verdict in the evidence: --judge' in said
    assert all(row['verdict'] and row['is_judged_now'] for row in judged)
    # as the command for one run judges
    for row in judged[:2]:
        # which also says that there is no config
        alone = ask('recommend', Path(row['evidence']).parents[1], code=2)
        assert row['verdict'] == alone['verdict']['name']
        changes = {change['key']: change['new'] for change in row['changes']}
        told = {change['key']: change['new'] for change in alone['changes']}
        assert changes == told


@pytest.mark.slow
def test_dask_judges_alike_though_a_worker_is_killed(unjudged, judged):
    with start_dask(2) as cluster:
        first = cluster.workers[0]
        pid = os.fork()
        if not pid:
            time.sleep(2.0)
            os.killpg(first.pid, signal.SIGKILL)
            os._exit(0)
        words = ('runs', str(unjudged), '--judge', '--dask', cluster.address)
        rows = json.loads(_capture(*words))['rows']
        os.waitpid(pid, 0)
    assert rows == judged


def test_a_scheduler_that_is_not_there_is_one_sentence(unjudged, capsys):
    words = ['runs', str(unjudged), '--judge', '--dask', 'tcp://127.0.0.1:1']
    assert main(words) == 2
    err = ' '.join(capsys.readouterr().err.split())
    assert 'expected a Dask scheduler at tcp://127.0.0.1:1, found none' in err


def test_a_process_that_dies_of_a_run_costs_no_other_run(unjudged):
    rows = [
        RunRow(run=str(n), evidence=str(n), owner='me', started_unix_s=1.0)
        for n in range(600)
    ]

    class Fragile:
        """Breaks at the second run, as a pool whose process is killed does."""

        def submit(self, judge: Any, evidence: str) -> Future[Any]:
            future: Future[Any] = Future()
            if evidence == '1':
                future.set_exception(BrokenExecutor())
            else:
                future.set_result(make_verdict(0))
            return future

    @contextlib.contextmanager
    def open_fragile() -> Iterator[Any]:
        yield Fragile()

    found = judge_rows(rows, open_fragile, lambda *_: None)
    by_run = {row.run: row for row in found}
    assert 'was killed twice' in (by_run.pop('1').reason or '')
    assert {row.verdict for row in by_run.values()} == {'data_bound_workers'}


def test_the_page_on_duckdb_asks_as_we_do(ask, fleet, tmp_path, monkeypatch):
    duckdb = pytest.importorskip('duckdb', reason='duckdb is not installed')
    killed, *_ = evidence_in(fleet)
    killed.write_bytes(killed.read_bytes() + b'{"kind":"verdict","verd')
    page = Path(__file__).parents[2] / 'docs' / 'en' / 'runs-in-duckdb.md'
    create, by_verdict, copy = re.findall(r'```sql\n(.*?)```', page.read_text(), re.S)
    monkeypatch.chdir(tmp_path)
    base = duckdb.connect()
    base.execute(create)
    asked = base.sql(by_verdict).fetchall()
    base.execute(copy)
    ((kept,),) = base.sql("select count(*) from 'runs.parquet'").fetchall()
    rows = rows_of(ask('runs', fleet))
    assert kept == len(rows) == FLEET
    ours: dict[str, list[float]] = {}
    for row in rows:
        sums = ours.setdefault(row['verdict'], [0, 0.0, 0.0])
        sums[0] += 1
        sums[1] += row['training_hours']
        sums[2] += row['saved_hours'] or 0.0
    theirs = {name: [count, hours, saved or 0.0] for name, count, hours, saved in asked}
    assert theirs == {name: pytest.approx(sums) for name, sums in ours.items()}
