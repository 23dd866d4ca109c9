"""Benchmark: naming causes of failing and hanging trainings in log and ``mmgpu why``.

Each case trains a toy model on MMEngine's own Runner, with the hook on, in a process of
its own; one thing in it hangs, dies or raises. `mmgpu why` is asked as soon as the
training has ended, or as soon as its watchdog has spoken. Twins are as slow in one
place and end well: every word of the watchdog there is a false alarm. About 18 minutes
on two cores.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import Benchmark, Figure, ask, at_least, at_most, exactly, say
from benchmarks.markdown import render_table

AT = 27
"""Index of the sample at which a training fails or hangs on purpose."""
IN_LOG_S = 90.0
"""Default limit, in seconds after a hang, until the log names worker and sample."""
LATE_S = 30.0
"""Maximum seconds after ``stuck_after_s`` until the log names the cause of a hang."""
REPEATS, AT_ONCE = 3, 6
"""Number of trainings per case, and of trainings that run at the same time."""
_PATIENCE_S = 240.0
_JOINED_S = 4.0
"""Seconds that rank 0 needs after an alarm to name the stuck rank."""
_ASKING = threading.Lock()
"""Lock for running one command at a time, as its output is captured."""


@dataclass(frozen=True)
class Case:
    """Training that fails or hangs for a known reason, with the expected answer.

    Attributes:
        plant: Of `benchmarks.why_training`.
        cause: The right one; ``None`` is a twin, which ends well.
        stands: How many ranks stand still and say so, rather than end.
        sample: That must be named, and where it stands still the worker as well.
        rank: That must be named, of two or of ``ranks``.
        ranks: Processes; ``None`` is one, or two where a rank must be named.
        is_mounted: Whether it mounts a small file system, which needs root.
        said: Words that the answer's proof must hold.
        is_below_run: Whether `mmgpu run` starts it.
    """

    plant: str
    cause: str | None = None
    stands: int = 0
    sample: int | None = None
    worker: int = 1
    rank: int | None = None
    after_s: float = 5.0
    is_mounted: bool = False
    ranks: int | None = None
    said: str = ''
    is_below_run: bool = False


DEFAULT = 'a sample that sleeps, at the default'
CASES = {
    DEFAULT: Case('sleep', 'worker_stuck', 1, AT, after_s=60.0),
    'a slow first epoch': Case('slow epoch'),
    'a long validation': Case('validation'),
    'a slow save': Case('slow save'),
    "a debugger's pause": Case('debugger'),
    'a sample that sleeps': Case('sleep', 'worker_stuck', 1, AT),
    'a sample that burns': Case('burn', 'worker_stuck', 1, AT),
    'a lock held while workers fork': Case('lock', 'worker_deadlock', 1, 0, 0),
    'a worker stopped by SIGSTOP': Case('stop worker', 'worker_stuck', 1, AT),
    'a FIFO without a writer': Case('fifo', 'storage_stalled', 1, AT),
    'a lock of logging held over the fork': Case(
        'logging', 'worker_deadlock', 1, AT, said='lock of a logging handler'
    ),
    'OpenMP used before the fork': Case(
        'OpenMP', 'worker_deadlock', 1, 0, 0, said='that a fork does not copy'
    ),
    'a channel of gRPC opened before the fork': Case(
        'gRPC', 'worker_deadlock', 1, AT, said='gRPC does not survive a fork'
    ),
    'a loop that tries again for ever': Case('retry', 'worker_stuck', 1, AT),
    'a plot without a screen': Case(
        'matplotlib', 'worker_stuck', 1, AT, said='there is no screen'
    ),
    'an HDF5 file opened before the fork': Case(
        'h5py', 'worker_deadlock', 1, AT, said='an HDF5 file'
    ),
    'an LMDB opened before the fork': Case(
        'lmdb', 'worker_deadlock', 1, AT, said='an LMDB environment'
    ),
    'the thread that pins': Case(
        'pin thread', 'worker_stuck', 1, said='the thread that pins', after_s=2.0
    ),
    'a slow first batch': Case(
        'slow batch', 'slow_loader', 1, said='slow, not stuck', after_s=2.0
    ),
    '/dev/shm full': Case('shm', 'shm_full', 1, is_mounted=True),
    'a metric that stands in its first process': Case(
        'process stands', 'unknown', 1, said='in process of Score in validation'
    ),
    'a metric that stands in its first compute_metrics': Case(
        'metric stands', 'unknown', 1, said='in compute_metrics of Score in validation'
    ),
    "C code that holds Python's lock": Case('backtrack', 'worker_stuck', 1),
    'a rank raises': Case('raise on rank 1', 'rank_lost', 1, rank=1),
    'a rank loads': Case('sleep on rank 1', 'worker_stuck', 2, AT, 0, rank=1),
    'a worker killed by SIGKILL': Case('kill worker', 'worker_killed'),
    'a worker killed by SIGSEGV': Case('crash worker', 'worker_killed'),
    'an exception in a sample': Case('missing file', 'sample_raised', sample=AT),
    'too few open files': Case('few files', 'open_files'),
    'the disk full': Case('disk', 'disk_full', is_mounted=True),
    'a kill for memory in a group': Case('kill for memory', 'oom_cgroup'),
    'kill -9 of the run': Case('kill run', 'interrupted'),
    'kill -9 of one of two ranks': Case('kill rank 1', 'rank_lost', rank=1),
    'uneven batches': Case('uneven', 'uneven_inputs', 1, rank=1),
    'uneven batches and a validation': Case(
        'uneven and a validation', 'uneven_inputs', 1, rank=1
    ),
    'uneven batches of four ranks': Case(
        'uneven and a validation', 'uneven_inputs', 3, rank=1, ranks=4
    ),
    'work on rank 0': Case('work on rank 0', 'work_on_one_rank', 2, rank=0),
    'work on rank 0 of four': Case(
        'work on rank 0', 'work_on_one_rank', 4, rank=0, ranks=4
    ),
    'a rank of four loads': Case(
        'sleep', 'worker_stuck', 4, AT, 1, rank=AT % 4, ranks=4
    ),
    'a rank that never came': Case(
        'a rank that never came', 'rank_never_came', 1, rank=1
    ),
    'a rank of four that never came': Case(
        'a rank that never came', 'rank_never_came', 3, rank=1, ranks=4
    ),
    'a rank that never came to the weights': Case(
        'before the weights', 'rank_never_came', 1, rank=1, is_below_run=True
    ),
    'a branch without gradient': Case('no gradient', 'unused_parameters', rank=1),
    'a branch without gradient, of four ranks': Case(
        'no gradient', 'unused_parameters', rank=1, ranks=4
    ),
    'kill -9 of one of four ranks': Case('kill rank 1', 'rank_lost', rank=1, ranks=4),
    'a slow metric on rank 0': Case('a slow metric on rank 0', ranks=2),
    'a slow save on rank 0': Case('a slow save on rank 0', ranks=2),
    'a slow start of rank 1': Case('a slow start of rank 1', ranks=2),
    'NaN losses': Case('nan', 'nan_loss'),
    'a typo in the config': Case('typo', 'config_error'),
    'Ctrl-C': Case('ctrl-c', 'interrupted'),
}
"""Benchmark trainings by name, with expected answers; the slowest one is first."""
MOUNTING = 'unshare', '-m'
QUICK = (
    'a sample that sleeps',
    'a worker killed by SIGKILL',
    'a slow save',
    'an exception in a sample',
    'a FIFO without a writer',
    'Ctrl-C',
)


@contextlib.contextmanager
def started(case: Case, folder: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Context manager that starts a training's processes and kills them at its exit."""
    module = [sys.executable, '-m', 'benchmarks.why_training']
    words = [*module, case.plant, str(folder), str(case.after_s)]
    if case.is_below_run:
        run = ['mmgpu_hooks', 'run', '--stuck-after', str(case.after_s)]
        words = [sys.executable, '-m', *run, *words]
    if case.is_mounted:
        words = [*MOUNTING, *words]
    ranks: list[dict[str, str]] = [{}]
    size = case.ranks or (1 if case.rank is None else 2)
    if size > 1:
        with socket.socket() as listening:
            listening.bind(('127.0.0.1', 0))
            port = str(listening.getsockname()[1])
        shared = dict(MASTER_ADDR='127.0.0.1', MASTER_PORT=port, WORLD_SIZE=str(size))
        ranks = [dict(shared, RANK=str(n), LOCAL_RANK=str(n)) for n in range(size)]
    with open(folder / 'console.txt', 'wb') as console:
        running = [
            subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, 'PYTHONUNBUFFERED': '1', **rank},
            )
            for rank in ranks
        ]
    try:
        yield running
    finally:
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@dataclass(frozen=True)
class Played:
    """Answer of ``mmgpu why`` on a training, and seconds until its log named causes."""

    cause: str | None
    is_named: bool | None
    """True if log and answer name worker, sample and rank; ``None`` if not required."""
    in_log_s: float | None
    cause_s: float | None
    """Seconds from ``stuck_after_s`` until the log named the cause, or ``None``."""
    alarms: int


def play_and_ask(case: Case, folder: Path) -> Played:
    """Trains once, and runs ``mmgpu why`` when the training hangs or has ended."""
    run = folder / 'run'
    folder.mkdir()
    named = f'worker {case.worker} (pid', f'sample {case.sample}'
    in_log_s, cause_s, alarms = None, None, 0
    with started(case, folder) as processes:
        until = time.monotonic() + _PATIENCE_S
        while time.monotonic() < until:
            is_over = all(process.poll() is not None for process in processes)
            log = ''.join(path.read_text() for path in run.glob('*/*.log')).lower()
            if in_log_s is None and all(words in log for words in named):
                in_log_s = read_age_s(folder)
            if case.stands and cause_s is None and f'cause: {case.cause} ' in log:
                cause_s = read_age_s(folder) - case.after_s
            records = read_records(run)
            stacks = run.glob('*/vis_data/*.stack')
            # a wait for others that was no alarm is noted for them alone
            alarms = records.count('"kind":"stuck"') - records.count('"is_alarm":false')
            alarms += any(path.stat().st_size for path in stacks)
            if is_over:
                break
            if 0 < case.stands <= alarms:
                until = min(until, time.monotonic() + _JOINED_S)
            time.sleep(0.2)
        with _ASKING:
            answer = ask('why', str(run), '--log', str(folder / 'console.txt'))
    is_named = None
    if case.sample is not None or case.rank is not None or case.said:
        is_named = case.rank in (None, answer['rank'])
        is_named &= case.said in '\n'.join(proof['text'] for proof in answer['proof'])
        if case.sample is not None:
            is_named &= str(case.sample) in str(answer['sample'])
            is_named &= in_log_s is not None or not case.stands
    is_false = case.cause is None and alarms
    if answer['cause'] != case.cause or is_named is False or is_false:
        say(f'{case.plant}: {alarms} alarms, {json.dumps(answer)}\n{records[-1000:]}')
    return Played(answer['cause'], is_named, in_log_s, cause_s, alarms)


def read_records(run: Path) -> str:
    """Reads the evidence files of all ranks, including ranks that did not train."""
    texts = []
    for path in (*run.glob('*/vis_data/gpu_eff*l'), *run.glob('*/vis_data/before*l')):
        with contextlib.suppress(FileNotFoundError):  # a rank has begun to train
            texts.append(path.read_text())
    return ''.join(texts)


def read_age_s(folder: Path) -> float:
    """Returns the seconds since the training began to fail or hang."""
    try:
        return time.time() - float((folder / 'began').read_text())
    except (OSError, ValueError):  # it is being written
        return 0.0


def may_mount() -> bool:
    """True if this machine allows mounting a file system for a training."""
    mount = [*MOUNTING, 'mount', '-t', 'tmpfs', 'tmpfs', '/mnt']
    return not subprocess.run(mount, capture_output=True).returncode


def list_figures(played: dict[str, list[Played]]) -> Iterator[Figure]:
    """Returns figures over all trainings: causes named, delays and false alarms."""
    every = [(CASES[name].cause, run) for name, runs in played.items() for run in runs]
    right = [run.cause == cause for cause, run in every if cause]
    named = [run.is_named for _, run in every if run.is_named is not None]
    twins = [run.alarms + (run.cause is not None) for cause, run in every if not cause]
    for label, hits, least in (
        ('right cause', right, 95),
        ('right worker, sample, rank and reason', named, 100),
    ):
        share_pct = 100 * sum(hits) / len(hits) if hits else None
        yield at_least(label, share_pct, least, '%', f'of {len(hits)} trainings')
    late = [run.cause_s for runs in played.values() for run in runs]
    known = [cause_s for cause_s in late if cause_s is not None]
    if known:
        label, note = 'cause in the log, after stuck_after_s', f'of {len(known)}'
        yield at_most(label, max(known), LATE_S, 's', f'most {note} trainings')
    yield exactly('false alarms', sum(twins), 0, note=f'in {len(twins)} twins')
    if DEFAULT in played:
        in_log_s = played[DEFAULT][0].in_log_s
        yield at_most('named in the log, at 60 s', in_log_s, IN_LOG_S, 's')


def render_cases(played: dict[str, list[Played]]) -> str:
    """Renders a table row per case: cause, how often it was named, seconds to log."""
    rows = []
    for name, runs in played.items():
        cause, times = CASES[name].cause, [run.in_log_s or 0.0 for run in runs]
        count = f'{sum(run.cause == cause for run in runs)} of {len(runs)}'
        in_log = f'{max(times):.1f}' if any(times) else ''
        rows.append([name, str(cause), count, in_log])
    return render_table(['planted', 'cause', 'named', 'in log, s'], rows)


def main(argv: list[str] | None = None) -> int:
    """Runs the benchmark: trains and judges all cases, and prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument('--only', default='', help='cases whose name holds this')
    bench = Benchmark('why', __doc__ or '', argv, parser=parser, is_timed=False)
    turns, can_mount = list[str](), may_mount()
    for name in QUICK if bench.is_quick else CASES:
        case = CASES[name]
        repeats = REPEATS
        if bench.is_quick or name == DEFAULT:
            repeats = 1
        if case.is_mounted and not can_mount:
            say(f'{name} is not played: mounting needs root')
        elif bench.options.only in name:
            turns += [name] * repeats
    played: dict[str, list[Played]] = defaultdict(list)
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix='mmgpu-why-') as root:
        folders = [Path(root, str(number)) for number in range(len(turns))]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            answers = pool.map(play_and_ask, [CASES[name] for name in turns], folders)
            for count, (name, answer) in enumerate(zip(turns, answers), 1):
                played[name].append(answer)
                say(f'{count} of {len(turns)}: {name}: {answer.cause}')
    bench.add(*list_figures(played))
    minutes = (time.monotonic() - began_s) / 60
    bench.add(Figure('run time', minutes, 'min', note=f'{len(turns)} trainings'))
    return bench.finish(render_cases(played))


if __name__ == '__main__':
    sys.exit(main())
