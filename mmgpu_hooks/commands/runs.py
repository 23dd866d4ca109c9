"""``mmgpu runs``: lists many runs, those with the most lost hours first.

A listing imports no numpy. What has no verdict is judged through an executor of
``concurrent.futures`` by a function of the path alone, so that processes and a Dask
cluster are the same to it.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from msgspec.structs import replace

from mmgpu_hooks.commands import options
from mmgpu_hooks.commands.output import print_sections, show_progress, warner
from mmgpu_hooks.judge.verdict_names import VERDICTS
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.many_runs import (
    ManyRuns,
    RunRow,
    add_up,
    by_waste,
    find_start_day,
    with_verdict,
)
from mmgpu_hooks.schema.run_ends import FileIdentity, read_run_ends
from mmgpu_hooks.schema.run_folder import EVIDENCE_NAME, EvidenceError
from mmgpu_hooks.schema.run_tree import FoundEvidence, RunTree
from mmgpu_hooks.schema.text import phrase
from mmgpu_hooks.show.many_runs import (
    describe_runs,
    render_runs_csv,
    render_runs_json,
)

if TYPE_CHECKING:
    from concurrent.futures import Executor
    from contextlib import AbstractContextManager

    # it imports numpy, which a list of runs does without
    from mmgpu_hooks.experiment.engine import OnProgress

_TOP = 20
"""Default number of runs that ``mmgpu runs`` prints as text, one per row."""
_PERIOD_S = 0.1
"""Shortest time in seconds from one update of the progress bar to the next."""
_CONNECT_S = 10
"""Longest wait in seconds for a connection to a Dask scheduler."""
_DAYS = {'d': 1, 'w': 7}
_DATA_FOLDER = f'{os.sep}vis_data'
"""Ending of the path of a folder in which MMEngine logs a run's data."""


def _parse_since(match: re.Match[str]) -> date | None:
    if match[1]:
        with contextlib.suppress(ValueError):
            return date.fromisoformat(match[1])
        return None
    days = int(match[2]) * _DAYS[match[3].lower()]
    return date.today() - timedelta(days=days)


SINCE = options.parsed(
    r'(\d{4}-\d\d-\d\d)|(\d{1,4})([dw])',
    _parse_since,
    phrase('a day as 2026-11-01, or a number of days or weeks as 7d, 2w'),
)


def _check_verdict(text: str) -> str:
    if text not in VERDICTS:
        near = get_close_matches(text, VERDICTS) or VERDICTS
        raise click.BadParameter(
            phrase('expected {near:/}, found {text!r}', near=tuple(near), text=text)
        )
    return text


def _expect_judge(given: Mapping[str, Any]) -> None:
    """Raises a `UserError` if ``--slurm`` lacks ``--judge``, or has ``--dask``."""
    if not given['judge'] or given['dask'] is not None:
        raise UserError(
            phrase(
                '--slurm: expected --judge, which is worth a job, and no --dask; leave '
                '--slurm out.'
            )
        )


def _count_cpus(given: Mapping[str, Any]) -> int | None:
    """Returns how many CPUs a SLURM job that judges runs needs, by ``--jobs``."""
    _expect_places(given['work_dirs'], given['page'])
    jobs: int | None = given['jobs']
    return jobs


def _expect_places(roots: Sequence[Path], page: Path | None) -> None:
    """Raises a `UserError` if a folder of runs is missing or a page is not writable."""
    if page is not None:
        # late: a listing does without numpy
        from mmgpu_hooks.commands.pages import expect_page_place

        expect_page_place(page)
    for root in roots:
        if not os.path.lexists(root):
            raise UserError(
                phrase(
                    '{root}: expected a folder with runs, found nothing there; check '
                    'the path (MMDetection writes to work_dirs/<config name>).',
                    root=root,
                )
            )


@options.command('runs', '0 done')
@click.argument(
    'work_dirs', type=options.PATH, nargs=-1, required=True, metavar='WORK_DIR...'
)
@click.option(
    '--since',
    type=SINCE,
    metavar='DAY',
    help='Only runs that began on that day (2026-11-01) or later, or in the last days '
    '(7d) or weeks (2w).',
)
@click.option(
    '--verdict',
    'verdicts',
    type=_check_verdict,
    multiple=True,
    metavar='NAME',
    help='Only runs with this verdict (mmgpu explain lists them); repeatable.',
)
@click.option(
    '--owner',
    'owners',
    multiple=True,
    metavar='USER',
    help='Only runs whose folder this user owns; repeatable.',
)
@click.option(
    '--top',
    type=options.WholeNumber(1, 10**9),
    metavar='N',
    show_default=False,
    help='Print only the N that waste most: 20 as text, else all.',
)
@options.flag('--judge', 'Judge the runs that have no verdict in their evidence.')
@click.option(
    '-j',
    '--jobs',
    type=options.WholeNumber(1, 1024),
    metavar='N',
    show_default=False,
    help='Processes that judge; by default one for each CPU.',
)
@click.option(
    '--dask',
    metavar='ADDRESS',
    help='Judge on a Dask cluster in place of processes here: the address of its '
    'scheduler, such as tcp://scheduler:8786.',
)
@options.slurm(_count_cpus, _expect_judge)
@click.option(
    '--page',
    type=options.PATH,
    metavar='FILE',
    help='Write a page, too: a table that sorts, and hours by verdict over time.',
)
@click.option(
    '--format', 'form', type=click.Choice(('text', 'json', 'csv')), default='text'
)
def runs(
    work_dirs: tuple[Path, ...],
    since: date | None,
    verdicts: tuple[str, ...],
    owners: tuple[str, ...],
    top: int | None,
    judge: bool,
    jobs: int | None,
    dask: str | None,
    page: Path | None,
    form: str,
) -> None:
    """List many runs: where their hours went, those that waste most first.

    WORK_DIR is any folder above runs with GPUEfficiencyHook. A run's verdict is read
    from its evidence, which the hook leaves there at the end and once an hour.
    """
    _expect_places(work_dirs, page)
    if not judge and (jobs is not None or dask is not None):
        raise UserError(
            phrase('expected --judge beside --jobs and --dask, found it missing.')
        )
    chosen = Filters(since, verdicts, owners)
    with show_progress() as on_progress:
        read = read_rows(work_dirs, chosen, on_progress)
        rows = read.rows
        if judge:
            engine = _choose_engine(jobs, dask)
            rows = judge_rows(rows, engine, on_progress)
    rows = by_waste(row for row in rows if chosen.keep_verdict(row))
    answer = ManyRuns(
        found=read.found,
        unreadable=read.unreadable,
        first_unreadable=read.first_unreadable,
        totals=add_up(rows),
        rows=tuple(rows if top is None or form == 'text' else rows[:top]),
    )
    if page is not None:
        _write_page(answer, page, work_dirs)
    if form != 'text':
        is_json = form == 'json'
        pieces = render_runs_json(answer) if is_json else render_runs_csv(answer.rows)
        for piece in pieces:
            print(piece, end='')
    else:
        print_sections(describe_runs(answer, answer.rows[: top or _TOP]))


def _write_page(answer: ManyRuns, page: Path, work_dirs: Sequence[Path]) -> None:
    from mmgpu_hooks.commands.pages import write_page
    from mmgpu_hooks.show.page import render_runs_page

    write_page(page, render_runs_page(answer, ', '.join(map(str, work_dirs))))
    warner('runs')(phrase('written to {page}', page=page))


@dataclass(frozen=True)
class Filters:
    """Conditions on owner, start day and verdict for runs that ``mmgpu runs`` lists."""

    since: date | None
    """Earliest start day of the listed runs; ``None`` for no limit."""
    verdicts: Sequence[str]
    owners: Sequence[str]

    def keep(self, row: RunRow) -> bool:
        """True if a run's row passes the filters by owner and by day."""
        if self.owners and row.owner not in self.owners:
            return False
        if self.since is None:
            return True
        day = find_start_day(row)
        return day is not None and day >= self.since

    def keep_verdict(self, row: RunRow) -> bool:
        """True if a run's row has one of the wanted verdicts, or all are wanted."""
        return not self.verdicts or row.verdict in self.verdicts


class ReadRows(NamedTuple):
    """Table rows of the runs below some folders, and the number of runs found there."""

    rows: list[RunRow]
    """Table rows of the runs that pass the filters by owner and by day."""
    found: int
    """Number of runs found below the folders, before any filter."""
    unreadable: int
    first_unreadable: str | None


def read_rows(
    roots: Sequence[Path], filters: Filters, on_progress: OnProgress
) -> ReadRows:
    """Reads one table row for each run found below some folders.

    Raises:
        UserError: If none has a run.
    """
    tree = RunTree(roots)
    files = list(_report_each(tree, on_progress))
    rows: list[RunRow] = []
    seen: set[FileIdentity] = set()
    owner_names: dict[int, str] = {}
    base = f'{roots[0]}{os.sep}' if len(roots) == 1 else ''
    for number, file in enumerate(files):
        if number % 64 == 0:
            on_progress(
                phrase('reading {files:,} runs', files=len(files)),
                number / len(files),
                None,
            )
        row = _begin_row(file, base, owner_names)
        try:
            ends = read_run_ends(file.path)
        except EvidenceError as error:
            rows.append(replace(row, reason=error.fault))
            continue
        if ends.identity in seen:  # by way of a link
            continue
        seen.add(ends.identity)
        row = replace(
            row,
            started_unix_s=ends.run.started_unix_s,
            hostname=ends.run.hostname,
            ranks=ends.run.world_size,
            status=ends.end and ends.end.status,
            slurm_job_id=ends.run.slurm_job_id,
        )
        if ends.verdict is not None:
            row = with_verdict(row, ends.verdict)
        elif ends.end is not None and ends.end.duration_s is not None:
            row = _with_hours(row, ends.end.duration_s, ends.run.device)
        rows.append(row)
    if not rows:
        raise UserError(_say_none(roots, tree))
    first = tree.unreadable[0] if tree.unreadable else None
    return ReadRows(
        [row for row in rows if filters.keep(row)],
        len(rows),
        len(tree.unreadable),
        first and _to_text(f'{first.path} ({first.reason})'),
    )


def _report_each(tree: RunTree, on_progress: OnProgress) -> Iterator[FoundEvidence]:
    due_s = time.monotonic()
    for number, file in enumerate(tree, 1):
        if (now_s := time.monotonic()) > due_s:
            due_s = now_s + _PERIOD_S
            on_progress(
                phrase('finding runs: {found_runs:,}', found_runs=number), 0.0, None
            )
        yield file


def _begin_row(file: FoundEvidence, base: str, owner_names: dict[int, str]) -> RunRow:
    """Returns a run's table row before its evidence file is read: folder and owner."""
    folder, name = os.path.split(file.path)
    if folder.endswith(_DATA_FOLDER):
        folder = folder.removesuffix(_DATA_FOLDER) or os.sep
    # a second training with the same Runner has the folder of the first
    label = folder if name == EVIDENCE_NAME else os.path.join(folder, name)
    if file.owner_id not in owner_names:
        owner_names[file.owner_id] = _read_user_name(file.owner_id)
    return RunRow(
        run=_to_text(label.removeprefix(base) or label),
        evidence=_to_text(file.path),
        owner=owner_names[file.owner_id],
    )


def _read_user_name(number: int) -> str:
    """Returns a user id's login name, or the id as text if no such user exists."""
    with contextlib.suppress(ImportError, KeyError):
        import pwd

        return pwd.getpwuid(number).pw_name
    return str(number)


def _to_text(path: str) -> str:
    """Returns a path as valid JSON text; bytes not in UTF-8 become ``\\udc80``."""
    if path.isascii():
        return path
    return path.encode('utf-8', 'backslashreplace').decode()


def _with_hours(row: RunRow, duration_s: float, device: str) -> RunRow:
    """Adds training hours and GPU hours to a table row of a run without verdict."""
    hours = duration_s / 3600
    gpu_hours = 0.0 if device == 'cpu' else hours * max(row.ranks or 1, 1)
    return replace(row, training_hours=hours, gpu_hours=gpu_hours)


def _say_none(roots: Sequence[Path], tree: RunTree) -> str:
    where = ', '.join(map(str, roots))
    if tree.unreadable:
        first = tree.unreadable[0]
        return phrase(
            '{where}: expected folders that can be read, found "{reason}" at {path}; '
            'check its permissions.',
            first,
            where=where,
        )
    return phrase(
        '{where}: expected runs with {name} below it, found none; train with the hook: '
        'mmgpu run tools/train.py CONFIG (or mmgpu enable CONFIG).',
        where=where,
        name=EVIDENCE_NAME,
    )


def judge_rows(
    rows: Sequence[RunRow],
    open_executor: Callable[[], AbstractContextManager[Executor]],
    on_progress: OnProgress,
) -> list[RunRow]:
    """Judges runs whose table rows lack a verdict; adds verdicts, or error reasons."""
    from mmgpu_hooks.adviser.many_runs import judge_all

    # one whose first line is damaged has no start, and cannot be judged
    waiting = {
        row.evidence: row
        for row in rows
        if row.verdict is None and row.started_unix_s is not None
    }
    if not waiting:
        return list(rows)
    judged_rows: dict[str, RunRow] = {}
    begun_s, count = time.monotonic(), len(waiting)
    for judged in judge_all(list(waiting), open_executor):
        row = waiting[judged.evidence]
        if judged.verdict is not None:
            row = with_verdict(row, judged.verdict, is_judged_now=True)
        else:
            row = replace(row, reason=judged.reason)
        judged_rows[judged.evidence] = row
        done = len(judged_rows)
        left_s = (time.monotonic() - begun_s) / done * (count - done)
        on_progress(phrase('judging {count:,} runs', count=count), done / count, left_s)
    return [judged_rows.get(row.evidence, row) for row in rows]


def _choose_engine(
    jobs: int | None, dask: str | None
) -> Callable[[], AbstractContextManager[Executor]]:
    from mmgpu_hooks.adviser.many_runs import open_processes

    if dask is not None:
        if jobs is not None:
            raise UserError(
                phrase('expected --jobs or --dask, found both; leave one out.')
            )
        return lambda: open_dask(dask)
    # macOS and Windows have no affinity
    own = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else None
    return lambda: open_processes(jobs or own or os.cpu_count() or 1)


@contextlib.contextmanager
def open_dask(address: str) -> Iterator[Executor]:
    """Context with an executor that runs functions on a Dask cluster.

    Args:
        address: Of its scheduler.

    Raises:
        UserError: If Dask is not installed, or no scheduler answers.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise UserError(
            phrase(
                '--dask: expected the package distributed, found none ({error}); pip '
                "install 'mmgpu_hooks[dask]', or use --jobs.",
                error=error,
            )
        ) from error
    try:
        client = Client(address, timeout=_CONNECT_S)
    except (OSError, ValueError, ImportError) as error:
        raise UserError(
            phrase(
                '--dask: expected a Dask scheduler at {address}, found none ({error}); '
                'start one with "dask scheduler" and name the address that it prints.',
                address=address,
                error=' '.join(str(error).split()),
            )
        ) from error
    with client:
        if not client.scheduler_info()['workers']:
            warner('runs')(
                phrase('{address} has no worker yet; waiting for one.', address=address)
            )
        with client.get_executor() as executor:
            yield executor
