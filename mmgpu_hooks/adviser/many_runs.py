"""Judges many runs through any executor of ``concurrent.futures``: processes, Dask.

A run is judged by a function of its path alone, so that whoever can import the package
and read the folders can judge it, on this host or on another.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    as_completed,
)
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from mmgpu_hooks.experiment.children import die_with_parent
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.recorded import VerdictRecord

OpenExecutor = Callable[[], AbstractContextManager[Executor]]

_MOST_ATTEMPTS = 3
"""A process that is killed, for memory as a rule, takes all of its pool with it; the
runs that were left are judged by a new one."""
_NICE = 10
"""Niceness of the processes: hosts from which many runs are seen have many users."""


class Judged(NamedTuple):
    """A run that was judged, or the reason why it could not be."""

    evidence: str
    verdict: VerdictRecord | None
    reason: str | None = None
    """A sentence; ``None`` where there is a verdict."""


def judge_evidence(evidence: str) -> VerdictRecord:
    """Judge one run as the hook would have at its end.

    Args:
        evidence: File of rank 0; other ranks' lie beside it.

    Raises:
        EvidenceError: If it cannot be read.
    """
    # late: only what judges needs numpy and scipy
    from mmgpu_hooks.adviser.ranks import choose_rank
    from mmgpu_hooks.judge.run import Run
    from mmgpu_hooks.judge.verdict import diagnose_run
    from mmgpu_hooks.recommend.verdict_record import judge_as_record

    path = Path(evidence)
    run = choose_rank(path, Run.read(path)).run
    return judge_as_record(
        run,
        diagnose_run(run),
        is_final=run.evidence.end is not None,
    )


def judge_all(evidence: Sequence[str], open_executor: OpenExecutor) -> Iterator[Judged]:
    """Judge runs, in the order in which they get ready.

    Args:
        evidence: Files of rank 0, each once.
        open_executor: Makes the executor that judges, again where one broke.
    """
    left = dict.fromkeys(evidence)
    for _ in range(_MOST_ATTEMPTS):
        with open_executor() as executor:
            for judged in _judge_once(list(left), executor):
                del left[judged.evidence]
                yield judged
        if not left:
            return
    for path in left:
        reason = f'the process that judged it was killed {_MOST_ATTEMPTS} times.'
        yield Judged(path, None, reason)


def _judge_once(evidence: Sequence[str], executor: Executor) -> Iterator[Judged]:
    """Judge runs until the executor breaks, if it does."""
    futures: dict[Future[VerdictRecord], str] = {}
    try:
        for path in evidence:
            futures[executor.submit(judge_evidence, path)] = path
        for future in as_completed(futures):
            yield _take(future, futures[future])
    except BrokenExecutor:
        return
    finally:
        # after Ctrl-C, too, nothing is waited for that has not begun
        for future in futures:
            future.cancel()


def _take(future: Future[VerdictRecord], evidence: str) -> Judged:
    try:
        return Judged(evidence, future.result())
    except BrokenExecutor:
        raise
    except UserError as error:
        return Judged(evidence, None, str(error))
    except Exception as error:  # noqa: BLE001 - one run must not hide the others
        return Judged(evidence, None, f'{type(error).__name__}: {error}')


def open_processes(count: int) -> ProcessPoolExecutor:
    """Processes of this host that judge; they are started as they are needed.

    Args:
        count: How many at one time.
    """
    return ProcessPoolExecutor(
        count,
        # a fork would copy the thread that draws a bar
        multiprocessing.get_context('spawn'),
        initializer=_begin_process,
        initargs=(os.getpid(),),
    )


def _begin_process(parent: int) -> None:
    die_with_parent(parent)
    # Ctrl-C is for the parent, which ends its processes
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_NICE)
    # small arrays: threads would only take other processes' cores
    os.environ['OMP_NUM_THREADS'] = os.environ['OPENBLAS_NUM_THREADS'] = '1'
