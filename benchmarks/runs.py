"""Benchmark of ``mmgpu runs`` on thousands of runs: time and memory, also with Dask.

    python -m benchmarks.runs [--quick] [--output]

The runs are those of ``tests/golden`` over and over, with other starts, users' folders
and lengths. 10,000 of them have a verdict in their evidence and are listed: as text,
JSON and CSV, by a process of its own, whose wall clock and largest memory count. 1,000
have none and are judged: by two processes, and by a Dask scheduler with two workers of
which one is killed midway (where ``distributed`` is installed). Both must give the same
answers. 10 minutes.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.harness import Benchmark, Figure, at_most, exactly, say
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.lines import LineError, decode_line, encode_line
from mmgpu_hooks.schema.recorded import (
    RecommendedChange,
    RunRecord,
    VerdictRecord,
)
from mmgpu_hooks.schema.run import read_evidence
from mmgpu_hooks.schema.run_folder import EVIDENCE_NAME

GOLDEN = Path(__file__).resolve().parents[1] / 'tests' / 'golden'
LISTED, JUDGED, TIMES = 10_000, 1_000, 5
QUICK_LISTED, QUICK_JUDGED, QUICK_TIMES = 1_000, 24, 2
MOST_S, MOST_MIB = 1.5, 60.0
_BEGIN_S = 1_790_000_000.0
_APART_S = 3_000.0
"""Seconds between the starts of simulated runs; 10,000 runs span a year."""

_MEASURE = """
import os, sys, time
begin_s = time.perf_counter()
with open(os.devnull, 'wb') as nowhere:
    pid = os.posix_spawn(
        sys.argv[1], sys.argv[1:], os.environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, nowhere.fileno(), 1)],
    )
_, status, used = os.wait4(pid, 0)
print(time.perf_counter() - begin_s, used.ru_maxrss, os.waitstatus_to_exitcode(status))
"""
"""Python code that prints a command's seconds, peak memory and exit code."""


@dataclass(frozen=True)
class Listing:
    """Time and peak memory of one call of ``mmgpu runs`` that lists all runs."""

    wall_s: float
    peak_mib: float
    """Peak resident memory of the command in MiB."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark: measures ``mmgpu runs`` on many runs, prints the table."""
    benchmark = Benchmark('runs', __doc__ or '', argv)
    quick = benchmark.is_quick
    listed, judged = (QUICK_LISTED, QUICK_JUDGED) if quick else (LISTED, JUDGED)
    with tempfile.TemporaryDirectory() as folder:
        say(f'writing {listed} runs with a verdict')
        write_fleet(Path(folder, 'listed'), listed, has_verdict=True)
        for form in ('text', 'json', 'csv'):
            say(f'listing them as {form}')
            times = QUICK_TIMES if quick else TIMES
            listings = [list_runs(Path(folder, 'listed'), form) for _ in range(times)]
            benchmark.add(*judge_listings(form, listed, listings))
        say(f'judging {judged} runs by two processes, and by Dask')
        write_fleet(Path(folder, 'judged'), judged, has_verdict=False)
        benchmark.add(*compare_engines(Path(folder, 'judged'), judged))
    return benchmark.finish()


def read_templates() -> list[bytes]:
    """Reads recorded evidence files of single-rank runs that can be judged."""
    templates = []
    for path in sorted(GOLDEN.glob(f'*/run*/**/{EVIDENCE_NAME}')):
        with contextlib.suppress(UserError, LineError):
            content = path.read_bytes()
            first = decode_line(content.partition(b'\n')[0])
            is_first = isinstance(first, RunRecord) and first.world_size == 1
            if is_first and read_evidence(path).intervals:
                templates.append(content)
    return templates


def write_fleet(folder: Path, count: int, *, has_verdict: bool) -> None:
    """Writes work_dirs with simulated runs of many users.

    Args:
        folder: Gets ``user/experiment/start/vis_data``.
        count: Of runs.
        has_verdict: True if each ends with a verdict, of other figures in each.
    """
    templates = read_templates()
    for number in range(count):
        first, _, rest = templates[number % len(templates)].partition(b'\n')
        started_s = _BEGIN_S + _APART_S * number
        run = decode_line(first)
        assert isinstance(run, RunRecord)
        run = msgspec.structs.replace(run, started_unix_s=started_s)
        stamp = time.strftime('%Y%m%d_%H%M%S', time.gmtime(started_s))
        place = folder / f'user{number % 40}' / f'config{number % 400}' / stamp
        data = place / 'vis_data'
        data.mkdir(parents=True)
        content = encode_line(run) + rest
        if has_verdict:
            content += b'' if content.endswith(b'\n') else b'\n'
            content += encode_line(make_verdict(number))
        (data / EVIDENCE_NAME).write_bytes(content)
        # as MMEngine leaves them
        (data / 'scalars.json').write_bytes(b'')
        (data / 'config.py').write_bytes(b'model = dict()\n')


def make_verdict(number: int) -> VerdictRecord:
    """Returns the final verdict record of a simulated run."""
    hours = 1.0 + number % 97
    names = ('data_bound_workers', 'compute_bound', 'save_bound', 'data_bound_storage')
    change = RecommendedChange(key='train_dataloader.num_workers', old=0, new=8)
    is_bound = number % 4 != 1
    return VerdictRecord(
        verdict=names[number % 4],
        confidence='high',
        is_final=True,
        written_unix_s=_BEGIN_S + _APART_S * number + 3600 * hours,
        iterations=1000 * (1 + number % 50),
        training_hours=hours,
        gpu_hours=8 * hours,
        ledger_pct={'data_wait': 54.1, 'step': 40.0, 'hooks': 3.2, 'other': 2.7},
        changes=(change,) if is_bound else (),
        saved_hours=0.3 * hours if is_bound else None,
        saved_low_hours=0.2 * hours if is_bound else None,
        saved_high_hours=0.4 * hours if is_bound else None,
        slurm_job_id=number,
    )


def list_runs(folder: Path, form: str) -> Listing:
    """Runs ``mmgpu runs`` in a child process and measures its time and memory.

    Raises:
        SystemExit: If the command fails.
    """
    command = [sys.executable, '-m', 'mmgpu_hooks', 'runs', str(folder)]
    words = [sys.executable, '-c', _MEASURE, *command, '--format', form]
    done = subprocess.run(words, stdout=subprocess.PIPE, check=True, text=True)
    wall_s, peak_kib, code = done.stdout.split()
    if code != '0':
        raise SystemExit(f'expected `mmgpu runs` to end with 0: {code}')
    return Listing(float(wall_s), int(peak_kib) / 1024)


def judge_listings(
    form: str, count: int, listings: Sequence[Listing]
) -> Iterator[Figure]:
    """Returns figures on time (once warm) and memory of listing runs in one format."""
    warm = listings[1:] or listings
    wall_s = statistics.median(listing.wall_s for listing in warm)
    peak_mib = max(listing.peak_mib for listing in listings)
    note = f'median of {len(warm)}, warm'
    yield at_most(f'{count} runs as {form}: wall clock', wall_s, MOST_S, 's', note)
    yield at_most(f'{count} runs as {form}: memory', peak_mib, MOST_MIB, 'MiB', 'peak')


def compare_engines(folder: Path, count: int) -> Iterator[Figure]:
    """Compares judging runs by two processes and by Dask: seconds and answers."""
    begun_s = time.perf_counter()
    ours = ask_judged(folder, '-j', '2')
    wall_s = time.perf_counter() - begun_s
    verdicts = sum(row['verdict'] is not None for row in ours)
    yield Figure('judged by 2 processes', wall_s, 's', note=f'{count} runs')
    yield exactly('runs with a verdict', verdicts, count)
    if importlib.util.find_spec('distributed') is None:
        yield Figure('judged by Dask', None, 's', note='distributed is not installed')
        return
    with start_dask(2) as cluster:
        begun_s = time.perf_counter()
        theirs = ask_judged(folder, '--dask', cluster.address, killed_in=cluster)
        wall_s = time.perf_counter() - begun_s
    note = 'two workers, one killed midway'
    yield Figure('judged by Dask', wall_s, 's', note=note)
    differing = sum(mine != other for mine, other in zip(ours, theirs))
    differing += abs(len(ours) - len(theirs))
    yield exactly('answers that differ', differing, 0)


def ask_judged(
    folder: Path, *words: str, killed_in: DaskCluster | None = None
) -> list[dict[str, Any]]:
    """Returns the judged runs that ``mmgpu runs --judge`` lists.

    Args:
        folder: Of the runs.
        words: More of the command line.
        killed_in: Cluster that judges, whose first worker is killed midway.
    """
    command = [sys.executable, '-m', 'mmgpu_hooks', 'runs', str(folder), '--judge']
    command += [*words, '--format', 'json']
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    if killed_in is not None:
        _kill_midway(killed_in, process)
    out, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f'expected {command} to end with 0: {process.returncode}')
    rows: list[dict[str, Any]] = json.loads(out)['rows']
    return rows


def _kill_midway(cluster: DaskCluster, command: subprocess.Popen[bytes]) -> None:
    """Kills the first worker once it has judged a run and has others still to judge."""
    from distributed import Client

    worker = cluster.workers[0]
    with Client(cluster.address) as client:
        pids = client.run(os.getpid)
        address = next(place for place, pid in pids.items() if pid == worker.pid)
        seen: set[str] = set()
        while True:
            waiting = set(client.processing([address])[address])
            seen |= waiting
            if waiting and seen - waiting:
                break
            if command.poll() is not None:
                raise SystemExit('expected to kill a worker midway, found it over')
            time.sleep(0.02)
        worker.kill()


@dataclass(frozen=True)
class DaskCluster:
    """Dask scheduler with workers on this host."""

    address: str
    workers: Sequence[subprocess.Popen[bytes]]


@contextlib.contextmanager
def start_dask(count: int) -> Iterator[DaskCluster]:
    """Context in which a Dask scheduler and its workers run.

    Args:
        count: Of workers, with a thread each.
    """
    dask = [sys.executable, '-m', 'dask']
    started: list[subprocess.Popen[bytes]] = []

    def start(*words: str) -> subprocess.Popen[bytes]:
        started.append(
            subprocess.Popen(
                [*dask, *words],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )
        return started[-1]

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, 'scheduler.json')
        try:
            place = ['--host', '127.0.0.1', '--no-dashboard']
            start('scheduler', *place, '--port', '0', '--scheduler-file', str(file))
            address = _wait_for_address(file)
            # without a nanny, which would start a killed one again
            alone = ['--no-nanny', '--nthreads', '1', '--local-directory', folder]
            workers = [start('worker', address, *place, *alone) for _ in range(count)]
            _wait_for_workers(address, count)
            yield DaskCluster(address, workers)
        finally:
            for process in started:
                process.kill()
                process.wait()


def _wait_for_workers(address: str, count: int) -> None:
    from distributed import Client

    with Client(address) as client:
        client.wait_for_workers(count, timeout=60)


def _wait_for_address(file: Path, within_s: float = 60.0) -> str:
    until_s = time.monotonic() + within_s
    while time.monotonic() < until_s:
        with contextlib.suppress(OSError, ValueError):
            address: str = json.loads(file.read_text())['address']
            return address
        time.sleep(0.1)
    raise SystemExit(f'expected a Dask scheduler within {within_s:g} s')


if __name__ == '__main__':
    sys.exit(main())
