"""Program that forks trainings which end while workers of their loader are switched.

After the folder: names of `ENDINGS`, each with or without ``plain-`` before it, which
is the same end of an untouched training. What they left is printed as JSON.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing.popen_fork
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.multiprocessing
from torch.utils.data import dataloader

from fakes.tuning import ScriptedAdviser, judge, propose, settings
from mmgpu_hooks.adviser.process import TuningAdviser
from mmgpu_hooks.hooks import possible_gain, tuner
from mmgpu_hooks.measure.loader.owed import read_state
from mmgpu_hooks.measure.loader.switch import LoaderSwitch
from training.toy import HOOK, AfterIteration, build_runner

BEFORE, AFTER = settings(2), settings(3)

MARK = 'MMGPU_TEST_ENDING'
"""Environment variable that marks the programs that a training has started."""

SHM = Path('/dev/shm')

LIMIT_S = 60
"""Whole seconds after which a training that has not ended by itself is killed."""

GONE_WITHIN_S = 10.0
"""Seconds within which processes and files of an ended training must be gone."""


class Ending(NamedTuple):
    """Way in which a test ends a training while its workers are switched."""

    moment: str
    """Moment: worker ``launch`` or ``shutdown``, or while batches are ``owed``.
    """
    victim: int | None = None
    """Index of the worker that is killed; ``None`` for Ctrl-C."""
    cost_s: float = 0.0
    """Predicted seconds to switch workers; a long switch waits for the epoch's end."""
    is_drained_first: bool = False


ENDINGS = {
    'start': Ending('launch'),
    'between': Ending('launch', cost_s=1000.0),
    'owed': Ending('owed'),
    'shutdown': Ending('shutdown'),
    'forking': Ending('launch', victim=0),
    'old': Ending('owed', victim=0),
    'new': Ending('owed', victim=-1),
    'drained': Ending('owed', victim=0, is_drained_first=True),
}

PLAIN = 'plain-'

IMPORTED_ONCE = ('matplotlib.backends.backend_agg', 'torch._dynamo')
"""Modules imported before forking, as importing them takes each training seconds."""


class RealAdviser(ScriptedAdviser):
    """Tuning process that really runs, while a script answers in its place.

    Args:
        evidence: Of the run.
        cost_s: Of the change.
        more: For the process.
    """

    def __init__(self, evidence: Path, cost_s: float, **more: Any) -> None:
        answers = propose(BEFORE, AFTER, cost_s=cost_s), judge(AFTER, AFTER, 'gain')
        super().__init__(answers)
        self._real = TuningAdviser(evidence, **more)
        self.pid = self._real._child.pid

    def dismiss(self) -> None:
        self._real.dismiss()

    def end(self) -> None:
        self._real.end()


class Launches:
    """Recorder of all starts of worker processes.

    Args:
        folder: Where their numbers are left.
    """

    def __init__(self, folder: Path) -> None:
        self.pids: list[int] = []
        self.before: Callable[[], None] = lambda: None
        """Function that is called before each start of a worker process."""
        kind: Any = multiprocessing.popen_fork.Popen
        launch = kind._launch

        def launch_recorded(popen: Any, process: Any) -> None:
            self.before()
            launch(popen, process)
            self.pids.append(popen.pid)
            # whole, also where Ctrl-C comes in between
            part = folder / 'pids.part'
            part.write_text(json.dumps([os.getpid(), *self.pids]))
            part.replace(folder / 'pids')

        kind._launch = launch_recorded


def list_processes(session: int, mark: str) -> Iterator[int]:
    """Yields the ids of living processes in a session or with a training's mark.

    Args:
        session: Of the training.
        mark: Value of `MARK`, which executed processes have.
    """
    for folder in Path('/proc').glob('[0-9]*'):
        try:
            fields = (folder / 'stat').read_text().rpartition(')')[2].split()
            environ = (folder / 'environ').read_bytes().split(b'\0')
        except OSError:  # it has ended meanwhile
            continue
        is_marked = f'{MARK}={mark}'.encode() in environ
        if fields[0] not in 'ZX' and (int(fields[3]) == session or is_marked):
            yield int(folder.name)


def list_files(folder: Path) -> list[str]:
    """Returns the names of shared memory files that a training's processes made."""
    pids = {*map(str, json.loads((folder / 'pids').read_text()))}
    return [
        path.name for path in SHM.glob('torch_*') if path.name.split('_')[1] in pids
    ]


def train(folder: Path, ending: Ending, *, is_tuned: bool) -> None:
    """Trains a toy model until the training is ended in the given way."""
    launches, is_switched, is_over = Launches(folder), [not is_tuned], list[bool]()
    advisers: list[RealAdviser] = []
    switch = LoaderSwitch.switch_within

    def switch_within(*args: Any, **more: Any) -> None:
        switch(*args, **more)
        is_switched[0] = True

    LoaderSwitch.switch_within = switch_within  # type: ignore[method-assign]

    def start_adviser(evidence: Path, **more: Any) -> RealAdviser:
        advisers.append(RealAdviser(evidence, ending.cost_s, **more))
        return advisers[-1]

    tuner.TuningAdviser = start_adviser  # type: ignore[misc, assignment]
    tuner.FIRST_ASKED, tuner.ASK_AGAIN = 0, 1.0
    # whether it waits for data or not
    possible_gain.LEAST_WAIT = 0.0
    if ending.is_drained_first:
        tuner.SPARE_BYTES = 2**60

    def end() -> None:
        if is_over:
            return
        is_over.append(True)
        running = [*list_processes(-1, folder.name)]
        seen = {
            'tuning': sum(adviser.pid in running for adviser in advisers),
            'files': len(list_files(folder)),
            'workers': len(launches.pids),
        }
        (folder / 'seen').write_text(json.dumps(seen))
        if ending.victim is None:
            os.kill(os.getpid(), signal.SIGINT)
            return
        victim = launches.pids[ending.victim]
        os.kill(victim, signal.SIGKILL)
        # not waited for by join(): PyTorch must find it ended itself, and one that
        # dies later may have delivered all that it owed
        while read_state(victim).state not in 'ZX':
            time.sleep(0.01)

    def end_in_launch() -> None:
        # of the first epoch's two workers both are there, and of the next ones one
        if len(launches.pids) == 3:
            end()

    def end_in_iteration(runner: Any) -> None:
        # the change comes at the end of the second interval, while batches are owed
        if is_switched[0] and runner.iter >= 7:
            end()

    hooks: list[Any] = []
    if ending.moment == 'launch':
        launches.before = end_in_launch
    elif ending.moment == 'owed':
        hooks.append(AfterIteration(end_in_iteration, 'LOWEST'))
    else:
        kind: Any = dataloader._MultiProcessingDataLoaderIter
        stop_worker = kind._mark_worker_as_unavailable

        def end_and_stop(*args: Any, **more: Any) -> None:
            end()
            stop_worker(*args, **more)

        kind._mark_worker_as_unavailable = end_and_stop
    # with it, files are there that could be left behind
    torch.multiprocessing.set_sharing_strategy('file_system')
    hook = {**HOOK, 'tune': True, 'summary': False, 'write_config': False}
    build_runner(
        folder / 'run',
        iterations=40,
        epochs=3,
        # the old workers must owe batches still when one of them is killed
        item_s=0.002 if ending.victim is None else 0.02,
        num_workers=2,
        hook=hook if is_tuned else None,
        custom_hooks=hooks,
    ).train()


def wait_until_gone(folder: Path) -> dict[str, Any]:
    """Returns processes and files that an ended training leaves for too long."""
    session = int((folder / 'session').read_text())
    until_s = time.monotonic() + GONE_WITHIN_S
    while True:
        left = {
            'processes': [*list_processes(session, folder.name)],
            'files': list_files(folder),
        }
        if not any(left.values()) or time.monotonic() > until_s:
            return left
        time.sleep(0.02)


def fork_training(folder: Path, name: str) -> int:
    """Forks a training and waits for its end; returns its exit status.

    Its session has its process's number, which it leaves beside its log.
    """
    folder.mkdir()
    pid = os.fork()
    if pid:
        (folder / 'session').write_text(str(pid))
        return os.waitpid(pid, 0)[1]
    os.setsid()
    signal.alarm(LIMIT_S)
    os.environ[MARK] = name
    log = os.open(folder / 'log.txt', os.O_WRONLY | os.O_CREAT)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    ending, is_tuned = ENDINGS[name.removeprefix(PLAIN)], not name.startswith(PLAIN)
    # what it raises ends the process, as that of any training
    train(folder, ending, is_tuned=is_tuned)
    sys.exit()


def main(root: Path, names: list[str]) -> None:
    """Forks a training for each name, and prints how it ended and what it left."""
    for name in IMPORTED_ONCE:
        importlib.import_module(name)
    statuses = {name: fork_training(root / name, name) for name in names}
    # a manager of shared memory takes two seconds to end
    found = {
        name: {
            'code': os.waitstatus_to_exitcode(status),
            'left': wait_until_gone(root / name),
        }
        for name, status in statuses.items()
    }
    print(json.dumps(found))


if __name__ == '__main__':
    main(Path(sys.argv[1]), sys.argv[2:])
