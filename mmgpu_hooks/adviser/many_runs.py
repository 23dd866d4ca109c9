"""Judges many runs by a ``concurrent.futures`` executor, such as processes or Dask.

A run is judged by a function of its path alone: every process that can import the
package and read the folders can judge it, on this host or on another.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from mmgpu_hooks.experiment.children import die_with_parent
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.recorded import VerdictRecord
from mmgpu_hooks.schema.run_folder import EvidenceError
from mmgpu_hooks.schema.text import Text, phrase, quoted

OpenExecutor = Callable[[], AbstractContextManager[Executor]]

_MOST_AHEAD = 256
"""Maximum number of runs that are submitted to the executor and not judged yet."""
_MOST_ATTEMPTS = 3
"""Maximum number of successive executors tried if each breaks before judging a run."""
_NICE = 10
"""Nice value of the processes that judge runs, as a login host has many users."""


class Judged(NamedTuple):
    """Verdict on what slows one run, or the reason why the run could not be judged."""

    evidence: str
    verdict: VerdictRecord | None
    reason: Text | None = None
    """Reason why the run could not be judged; ``None`` if there is a verdict."""


def judge_evidence(evidence: str) -> VerdictRecord:
    """Judges what slows one run, by its evidence file; returns the verdict record.

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
    is_final = run.evidence.end is not None
    return judge_as_record(run, diagnose_run(run), is_final=is_final)


def judge_all(evidence: Sequence[str], open_executor: OpenExecutor) -> Iterator[Judged]:
    """Judges what slows runs, by an executor; yields each verdict once it is ready.

    A process that is killed, for memory as a rule, takes its pool with it. Which run it
    was is unknown: all that were on their way are judged again at the end, one by one,
    and only one that is alone when its process is killed has no verdict.

    Args:
        evidence: Files of rank 0, each once.
        open_executor: Makes the executor that judges, again where one broke.
    """
    waiting, suspects = deque(evidence), deque[str]()
    fruitless = 0
    while waiting and fruitless < _MOST_ATTEMPTS:
        count = len(waiting)
        with open_executor() as executor:
            broken = yield from _judge_until_broken(waiting, executor, _MOST_AHEAD)
        suspects.extend(broken)
        fruitless = fruitless + 1 if len(waiting) == count else 0
    for path in waiting:
        said = phrase(
            'the processes that judge were killed {attempts} times.',
            attempts=_MOST_ATTEMPTS,
        )
        yield Judged(path, None, said)
    while suspects:
        count = len(suspects)
        with open_executor() as executor:
            broken = yield from _judge_until_broken(suspects, executor, 1)
        if len(suspects) == count:
            broken = [suspects.popleft()]
        for path in broken:
            said = phrase('the process that judged it was killed twice.')
            yield Judged(path, None, said)


def _judge_until_broken(
    waiting: deque[str], executor: Executor, most_ahead: int
) -> Generator[Judged, None, list[str]]:
    """Judges runs, yields verdicts; returns runs in progress if the executor breaks.

    Args:
        waiting: Runs; those that are begun are taken off.
        executor: Judges them.
        most_ahead: Runs that are on their way at one time.

    Returns:
        The runs that were on their way when it broke.
    """
    ahead: dict[Future[VerdictRecord], str] = {}
    try:
        while waiting or ahead:
            while waiting and len(ahead) < most_ahead:
                # one that cannot be sent is still waiting
                future = executor.submit(judge_evidence, waiting[0])
                ahead[future] = waiting.popleft()
            for future in wait(ahead, return_when=FIRST_COMPLETED).done:
                judged = _take(future, ahead[future])
                del ahead[future]
                yield judged
    except BrokenExecutor:
        return list(ahead.values())
    finally:
        # after Ctrl-C, too, nothing is waited for that has not begun
        for future in ahead:
            future.cancel()
    return []


def _take(future: Future[VerdictRecord], evidence: str) -> Judged:
    try:
        return Judged(evidence, future.result())
    except BrokenExecutor:
        raise
    except EvidenceError as error:
        # the path is named beside it
        return Judged(evidence, None, error.fault)
    except UserError as error:
        return Judged(evidence, None, error.said)
    except Exception as error:  # noqa: BLE001 - one run must not hide the others
        return Judged(evidence, None, quoted(f'{type(error).__name__}: {error}'))


def open_processes(count: int) -> ProcessPoolExecutor:
    """Opens a pool of local processes that judge runs.

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
