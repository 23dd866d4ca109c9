"""Benchmark trainings that fail or hang, repeated after following the advice.

Each is trained until it dies, or until its log names why it stands still. Then it is
trained with the cure: the config that `mmgpu recommend` writes, or the setting that the
answer of `mmgpu why` names in words. It must come to its end.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness import Figure, exactly, find_evidence, say
from benchmarks.holders import Limit, can_limit
from benchmarks.whole_training import SECONDS

LIMIT_S = 180.0
"""Time limit in seconds for a training to end or to log why it hangs."""
_ENTER = 'echo $$ > "$LIMIT/cgroup.procs" && exec "$@"'


@dataclass(frozen=True)
class Ending:
    """Benchmark training that fails or hangs, with its cause and its remedy.

    Attributes:
        config: Its config file.
        cause: The right one.
        cure: Settings, where the answer names them in words.
        words: Of the answer, which ask for the cure.
        limit_mib: Of a control group that it trains in; 0 is none.
        shorter: Settings of the training that ends badly, so that it says so soon.
    """

    config: str
    cause: str
    words: str
    cure: Mapping[str, Any] = field(default_factory=dict)
    limit_mib: int = 0
    shorter: Mapping[str, Any] = field(default_factory=dict)


ENDINGS = {
    'dies of memory': Ending(
        'benchmarks/ordinary/dies_of_memory.py',
        'oom_cgroup',
        'it would have held',
        limit_mib=1210,
    ),
    'hangs': Ending(
        'benchmarks/ordinary/hangs.py',
        'worker_deadlock',
        "env_cfg.mp_cfg.mp_start_method='spawn'",
        {'env_cfg.mp_cfg.mp_start_method': 'spawn'},
        shorter={'default_hooks.gpu_efficiency.stuck_after_s': 2},
    ),
}
QUICK = ('hangs',)


def make_environ(root: Path) -> dict[str, str]:
    """Returns environment variables for a training whose train step uses one thread."""
    paths = [str(root), os.environ.get('PYTHONPATH', '')]
    return {
        **os.environ,
        'PYTHONPATH': os.pathsep.join(filter(None, paths)),
        'OMP_NUM_THREADS': '1',
        'MKL_NUM_THREADS': '1',
    }


class Trainer:
    """Runs trainings of a folder's configs, and ``mmgpu`` commands on the results.

    Args:
        folder: Of the configs; trainings go below it.
        environ: Of each process.
    """

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self._folder, self._environ = folder, environ

    def ask(self, *words: str) -> str:
        """Returns the output of an ``mmgpu`` command."""
        done = subprocess.run(
            [sys.executable, '-W', 'ignore', '-m', 'mmgpu_hooks', *words],
            cwd=self._folder,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            env=self._environ,
        )
        return done.stdout

    def train(
        self,
        config: str,
        work_dir: str,
        settings: Mapping[str, Any],
        limit_mib: int,
    ) -> bool:
        """Trains until the end (returns True) or until the log names why it hangs."""
        words = ['benchmarks.whole_training', config, work_dir, json.dumps(settings)]
        command = [sys.executable, '-W', 'ignore', '-m', *words]
        run = self._folder / work_dir
        run.mkdir(parents=True)
        environ = dict(self._environ)
        with contextlib.ExitStack() as stack:
            if limit_mib:
                environ['LIMIT'] = str(stack.enter_context(Limit(limit_mib)))
                command = ['sh', '-c', _ENTER, 'sh', *command]
            console = stack.enter_context((run / 'console.txt').open('w'))
            process = subprocess.Popen(
                command,
                cwd=self._folder,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environ,
            )
            try:
                self._wait(process, run)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return (run / SECONDS).exists()

    @staticmethod
    def _wait(process: subprocess.Popen[bytes], run: Path) -> None:
        until = time.monotonic() + LIMIT_S
        while process.poll() is None and time.monotonic() < until:
            time.sleep(0.2)
            if any('\n  Cause: ' in log.read_text() for log in run.glob('*/*.log')):
                return


def play_ending(name: str, trainer: Trainer, folder: Path) -> Iterator[Figure]:
    """Trains until failure, asks ``mmgpu why``, and trains again with the remedy.

    Args:
        name: Of `ENDINGS`.
        trainer: Of the configs.
        folder: That it trains in.
    """
    ending = ENDINGS[name]
    if ending.limit_mib and not can_limit():
        say(f'{name} is not played: no control group can be made here')
        return
    runs = f'work_dirs/{Path(ending.config).stem}'
    before = f'{runs}/before'
    limit_mib = ending.limit_mib
    ended = trainer.train(ending.config, before, ending.shorter, limit_mib)
    console = folder / before / 'console.txt'
    shown = ['--log', str(console)] if console.stat().st_size else []
    why = json.loads(trainer.ask('why', before, *shown, '--format', 'json'))
    say(f'{name}: {why["cause"]}: {why["sentence"]} {" ".join(why["do"][:1])}')
    is_right = not ended and why['cause'] == ending.cause
    yield exactly(f'{name}: cause right', int(is_right), 1, note=str(why['cause']))
    is_said = ending.words in ' '.join(why['do'])
    yield exactly(f'{name}: the cure is named', int(is_said), 1)
    config, settings = ending.config, ending.cure
    if not settings:
        config = _write_recommended(trainer, folder, before) or config
    holds = trainer.train(config, f'{runs}/after', settings, limit_mib)
    note = Path(config).name if config != ending.config else _phrase(settings)
    yield exactly(f'{name}: trains to its end with it', int(holds), 1, note=note)


def _write_recommended(trainer: Trainer, folder: Path, run: str) -> str | None:
    evidence = find_evidence(folder / run).relative_to(folder)
    answer = trainer.ask('recommend', str(evidence))
    written = re.search(r'^Written +(\S.*)$', answer, re.MULTILINE)
    return written[1] if written else None


def _phrase(settings: Mapping[str, Any]) -> str:
    return ', '.join(f'{key}={value}' for key, value in settings.items())
