"""Runs one short real training with settings of its own, and says what became of it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, Callable

from mmgpu_hooks.experiment.process_tree import ProcessTree, stops_put_off
from mmgpu_hooks.experiment.training import LOG_NAME
from mmgpu_hooks.experiment.trial_channel import TrialReader
from mmgpu_hooks.experiment.trial_events import read_events
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.measure.clock import monotonic_s
from mmgpu_hooks.schema import TrialResult, TrialSpec
from mmgpu_hooks.schema.run_folder import EvidenceError, read_run_folder

_LOOK_PERIOD_S = 0.2
DEFAULT_TIME_LIMIT_S = 600.0


class RunningTrial:
    """A trial in a process of its own, until it is closed.

    Args:
        spec: What to train.
        block: Iterations after which it halts for a word; ``None`` lets it run.
        environ: Environment variables to add.

    Raises:
        OSError: If its folder or its process cannot be made.
    """

    def __init__(
        self,
        spec: TrialSpec,
        *,
        block: int | None = None,
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
            if self._process.stdin is not None:
                # what could not be sent to one that is gone would be sent again
                with contextlib.suppress(BrokenPipeError):
                    self._process.stdin.close()
        finally:
            self._reader.close()

    @property
    def elapsed_s(self) -> float:
        """Seconds since it was started."""
        return monotonic_s() - self._begin_s

    def send(self, iterations: int) -> None:
        """Let a halted trial train so many more."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(b'%d\n' % iterations)
            self._process.stdin.flush()
        except BrokenPipeError:
            # it is gone, which the next look at its events tells
            return

    def finish(self) -> None:
        """Let it end by itself after the blocks that it was told of."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def read_events(self) -> list[dict[str, Any]]:
        """What it told since, after a short wait for something to tell.

        A trial that is gone without a word tells ``over`` all the same.
        """
        return read_events(self._process, self._reader, self._log_path, _LOOK_PERIOD_S)


def run_trial(
    spec: TrialSpec,
    *,
    time_limit_s: float = DEFAULT_TIME_LIMIT_S,
    on_progress: Callable[[int], None] | None = None,
    environ: Mapping[str, str] | None = None,
) -> TrialResult:
    """Train once, in a process of its own, and leave none of it running.

    Args:
        spec: What to train, and until when.
        time_limit_s: Seconds after which it is killed, its start included.
        on_progress: Called with the iterations done, about twice a second.
        environ: Environment variables to add.

    Returns:
        How it ended. Whatever goes wrong in the training is a result, no exception.

    Raises:
        OSError: If its folder or its process cannot be made.
        KeyboardInterrupt: As pressed; the training is ended first.
    """
    status, error, iterations = 'timed_out', None, 0
    with contextlib.closing(RunningTrial(spec, environ=environ)) as trial:
        while status == 'timed_out' and trial.elapsed_s < time_limit_s:
            for event in trial.read_events():
                iterations = event.get('iterations', iterations)
                if event['event'] == 'over':
                    status, error = event['status'], event['error']
                elif on_progress is not None:
                    on_progress(iterations)
        seconds = trial.elapsed_s
    if status == 'timed_out':
        error = f'killed after {time_limit_s:g} s, {iterations} iterations done'
    return TrialResult(
        settings=dict(spec.settings),
        status=status,
        folder=spec.folder,
        seconds=seconds,
        iterations=iterations,
        error=error,
    )


def _start(
    body: Mapping[str, Any], write_end: int, log: IO[bytes], environ: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    module = 'trial_ranks' if body['spec']['ranks'] > 1 else 'trial_child'
    command = [sys.executable, '-m', f'mmgpu_hooks.experiment.{module}']
    return subprocess.Popen(
        [*command, json.dumps(body)],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=_environ(environ),
        pass_fds=(write_end,),
        # Ctrl-C is for us alone, and all of it can be ended by one id
        start_new_session=True,
    )


def _environ(added: Mapping[str, str]) -> dict[str, str]:
    # what was printed before a kill is in the log
    ours = {'PYTHONPATH': _python_path(), 'PYTHONUNBUFFERED': '1'}
    return {**os.environ, **ours, **added}


def _python_path() -> str:
    """A checkout that is not installed must be found by the trial too."""
    root, given = Path(__file__).resolve().parents[2], os.environ.get('PYTHONPATH')
    is_installed = root.name in ('site-packages', 'dist-packages')
    # an installed one is found, and its folder would come before the standard library
    parts = [given] if is_installed else [str(root), given]
    return os.pathsep.join(part for part in parts if part)


def read_trial(result: TrialResult) -> Run | None:
    """What a trial recorded; ``None`` when it left nothing that can be read."""
    try:
        files = read_run_folder(Path(result.folder))
        return Run.read(files.evidence) if files.evidence else None
    except EvidenceError:
        return None
