"""A training in a process of its own: started, given iterations, held, ended."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Callable

from mmgpu_hooks.experiment.process_tree import ProcessTree, stops_put_off
from mmgpu_hooks.experiment.trial_events import (
    ENDLESS,
    LOG_NAME,
    TrialReader,
    read_events,
)
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.measure.clock import monotonic_s
from mmgpu_hooks.schema import Trial, TrialSpec
from mmgpu_hooks.schema.run_folder import EvidenceError, read_run_folder

DEFAULT_TIME_LIMIT_S = 600.0

_LOOK_PERIOD_S = 0.2


class RunningTrial:
    """A trial in a process of its own, until it is closed.

    Args:
        spec: What to train.
        block: Iterations after which it waits for a word.
        environ: Environment variables to add.

    Raises:
        OSError: If its folder or its process cannot be made.
    """

    def __init__(
        self,
        spec: TrialSpec,
        block: int = ENDLESS,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.spec = spec
        folder = Path(spec.folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._log_path = folder / LOG_NAME
        self._begin_s = monotonic_s()
        read_end, write_end = os.pipe()
        self._reader = TrialReader(read_end)
        body = {
            'spec': asdict(spec),
            'parent': os.getpid(),
            'descriptor': write_end,
            'block': block,
        }
        undo: Callable[[], None] = self._reader.close
        try:
            # what was started must be known to whoever is to end it
            with stops_put_off(), self._log_path.open('wb') as log:
                self._process = _start(body, write_end, log, environ or {})
                self.tree = ProcessTree(self._process)
                undo = self.close
        except BaseException:
            undo()
            raise
        finally:
            os.close(write_end)

    def close(self) -> None:
        """End it with all its workers, whatever it is at."""
        try:
            self.tree.kill()
            self.finish()
        finally:
            self._reader.close()

    @property
    def elapsed_s(self) -> float:
        """Seconds since it was started."""
        return monotonic_s() - self._begin_s

    def send(self, iterations: int) -> None:
        """Let it train so many more after those that it knows of."""
        assert self._process.stdin is not None
        # of one that is gone the next look at its events tells
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(b'%d\n' % iterations)
            self._process.stdin.flush()

    def finish(self) -> None:
        """Let it end by itself after the blocks that it knows of."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def read_events(self) -> list[dict[str, Any]]:
        """What it told since, after a short wait for something to tell.

        A trial that is gone without a word tells ``over`` all the same.
        """
        return read_events(self._process, self._reader, self._log_path, _LOOK_PERIOD_S)


@dataclass(frozen=True)
class Block:
    """Consecutive iterations of one training."""

    seconds: tuple[float, ...]
    """Each from the end of the one before."""
    starts: tuple[int, ...] = ()
    """Indices of those that began an epoch."""
    batch_size: int | None = None
    left: int | None = None
    """Iterations that the training still has."""
    is_loss_finite: bool | None = None
    peak_rss_bytes: int | None = None


@dataclass
class Progress:
    """How far a trial is, and in the end how it ended."""

    folder: Path
    status: str = 'timed_out'
    error: str | None = None
    seconds: float = 0.0
    iterations: int = 0
    blocks: list[Block] = field(default_factory=list)
    is_over: bool = False
    """Whether the process has ended."""
    is_enough: bool = False
    """Whether no further iterations are asked for."""
    first_block_s: float | None = None
    """``seconds`` when it was done."""

    def heed(self, event: Mapping[str, Any]) -> None:
        """Take one event in."""
        if event['event'] == 'over':
            self.is_over = True
            self.status, self.error = event['status'], event['error']
            self.iterations = event.get('iterations', self.iterations)
            return
        known = {name: event[name] for name in Block.__dataclass_fields__}
        known |= {name: tuple(event[name]) for name in ('seconds', 'starts')}
        self.blocks.append(Block(**known))
        self.iterations += len(event['seconds'])
        if self.first_block_s is None:
            self.first_block_s = self.seconds


def run_trial(
    spec: TrialSpec,
    *,
    time_limit_s: float = DEFAULT_TIME_LIMIT_S,
    environ: Mapping[str, str] | None = None,
) -> Trial:
    """Train once, in a process of its own, and leave none of it running.

    Args:
        spec: What to train, and how many iterations.
        time_limit_s: Seconds after which it is killed, its start included.
        environ: Environment variables to add.

    Returns:
        How it ended. Whatever goes wrong in the training is a result, no exception.

    Raises:
        OSError: If its folder or its process cannot be made.
        KeyboardInterrupt: As pressed; the training is ended first.
    """
    progress = Progress(Path(spec.folder))
    with contextlib.closing(
        RunningTrial(spec, spec.iterations or ENDLESS, environ)
    ) as trial:
        trial.finish()
        while not progress.is_over and trial.elapsed_s < time_limit_s:
            for event in trial.read_events():
                progress.heed(event)
        progress.seconds = trial.elapsed_s
    return end_trial(spec.folder, progress, time_limit_s)


def end_trial(
    name: str,
    progress: Progress,
    time_limit_s: float,
    figures: Mapping[str, Any] | None = None,
) -> Trial:
    """The record of a trial."""
    error = progress.error
    if progress.status == 'timed_out':
        done = progress.iterations
        error = f'killed after {time_limit_s:g} s, {done} iterations done'
    return Trial(
        name=name,
        status=progress.status,
        error=error,
        seconds=progress.seconds,
        iterations=progress.iterations,
        folder=str(progress.folder),
        figures=figures or {},
    )


def remove_checkpoints(folder: Path) -> None:
    """The next trial needs the room."""
    for checkpoint in folder.rglob('*.pth'):
        checkpoint.unlink(missing_ok=True)


def read_trial_run(folder: Path) -> Run | None:
    """What a trial has recorded so far; ``None`` when nothing can be read."""
    path = locate_evidence(folder)
    try:
        return Run.read(path) if path is not None else None
    except EvidenceError:
        return None


def locate_evidence(folder: Path) -> Path | None:
    """The evidence of a trial; ``None`` when there is none."""
    try:
        return read_run_folder(folder).evidence
    except EvidenceError:
        return None


def _start(
    body: Mapping[str, Any], write_end: int, log: IO[bytes], environ: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    command = [sys.executable, '-m', 'mmgpu_hooks.experiment.trial_child']
    return subprocess.Popen(
        [*command, json.dumps(body)],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=subprocess.STDOUT,
        # what was printed before a kill is in the log
        env={
            **os.environ,
            'PYTHONPATH': _python_path(),
            'PYTHONUNBUFFERED': '1',
            **environ,
        },
        pass_fds=(write_end,),
        # Ctrl-C is for us alone, and all of it can be ended by one id
        start_new_session=True,
    )


def _python_path() -> str:
    """A checkout that is not installed must be found by the trial too."""
    root, given = Path(__file__).resolve().parents[2], os.environ.get('PYTHONPATH')
    is_installed = root.name in ('site-packages', 'dist-packages')
    # an installed one is found, and its folder would come before the standard library
    parts = [given] if is_installed else [str(root), given]
    return os.pathsep.join(part for part in parts if part)
