"""Harness of all benchmarks: command line, result table, exit code, machine facts.

The last line printed is a summary. Exit codes: 0 every target is met, 1 one is missed,
3 other programs used too much of the machine to judge. Figures that fall short are
printed and written as they are. ``--quick`` runs fewer cases, for seeing that it works:
of so few a median or a share says little, so only what must hold of each case (targets
with ``=``) and what could not be measured fail it. Its table is never kept.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import datetime
import importlib.util
import io
import json
import math
import operator
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import psutil

from benchmarks.markdown import render_table
from mmgpu_hooks.experiment import engine
from mmgpu_hooks.experiment.trial import read_tree_cpu_s

OK, MISSED, TOO_BUSY = 0, 1, 3

BUSY_LIMIT_PCT = 4.0
"""Load by other programs, in per cent of the machine, above which a run is void."""

RESULTS = Path(__file__).resolve().parent / 'results'

_PR_SET_CHILD_SUBREAPER = 36
_PACKAGES = (
    'torch',
    'mmengine',
    'onedl-mmengine',
    'mmcv',
    'onedl-mmcv',
    'mmdet',
    'onedl-mmdetection',
)


@dataclass(frozen=True)
class Figure:
    """Row of a benchmark's result table: a measured value with its target."""

    name: str
    value: float | None
    """Measured value; ``None`` if it could not be measured (``note`` says why)."""
    unit: str = ''
    target: str = ''
    """Target such as ``<= 20``; empty for figures that are only shown."""
    is_met: bool | None = None
    """True if the target was met, False if not, ``None`` without a target."""
    note: str = ''

    @property
    def verdict(self) -> str:
        """Verdict on the figure: ``met``, ``missed``, or empty without a target."""
        if not self.target:
            return ''
        return 'met' if self.is_met and self.value is not None else 'missed'


class MakeFigure(Protocol):
    """Type of functions that return a figure with a limit as its target."""

    def __call__(
        self,
        name: str,
        value: float | None,
        limit: float,
        unit: str = '',
        note: str = '',
    ) -> Figure: ...


def _limited(sign: str, meets: Callable[[float, float], bool]) -> MakeFigure:
    def make(
        name: str, value: float | None, limit: float, unit: str = '', note: str = ''
    ) -> Figure:
        is_met = value is not None and meets(value, limit)
        return Figure(name, value, unit, f'{sign} {limit:g}', is_met, note)

    return make


at_most, at_least = _limited('<=', operator.le), _limited('>=', operator.ge)
exactly = _limited('=', operator.eq)
"""Returns a figure whose target is an exact number."""


class OtherLoad(engine.OtherLoad):
    """Meter of the CPU time that other programs use while a benchmark runs.

    The kernel counts in ticks of 10 ms, so the span should be seconds. Descendants
    whose parent ended without having waited for them count as other programs, but for
    those of a :class:`Benchmark`.
    """

    def __init__(self) -> None:
        super().__init__(read_tree_cpu_s)

    def read_pct(self) -> float:
        """Returns the per cent of all cores that other programs used so far."""
        return min(100.0 * (self.read_cores() or 0.0) / (os.cpu_count() or 1), 100.0)


class Benchmark:
    """One run of a benchmark: collects figures, prints the table, judges the targets.

    Args:
        name: The module's name, which names the file of results too.
        description: What it measures; the first sentence is the title.
        argv: Arguments. Defaults to those of the command line.
        parser: With options of its own. Its values are in :attr:`options`.
        keeps_trials: Whether its trainings can be judged again from a file.
        is_timed: Whether other programs can change the figures; bytes they cannot.
    """

    def __init__(
        self,
        name: str,
        description: str,
        argv: Sequence[str] | None = None,
        *,
        parser: argparse.ArgumentParser | None = None,
        keeps_trials: bool = False,
        is_timed: bool = True,
    ) -> None:
        self.name = name
        self.title = ' '.join(description.split('\n\n')[0].split())
        parser = parser or argparse.ArgumentParser()
        parser.prog = f'python -m benchmarks.{name}'
        parser.description = description
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.add_argument(
            '--output',
            nargs='?',
            type=Path,
            const=RESULTS / f'{name}.md',
            metavar='FILE',
            help=f'write the table as Markdown (benchmarks/results/{name}.md)',
        )
        parser.add_argument(
            '--quick', action='store_true', help='fewer cases, within 2 minutes'
        )
        if keeps_trials:
            parser.add_argument(
                '--trials', type=Path, help='judge these trainings again'
            )
        self.options = parser.parse_args(argv)
        self.is_quick: bool = self.options.quick
        if self.is_quick and self.options.output is not None:
            parser.error('the table of a quick run is not kept: leave --output out')
        self.figures: list[Figure] = []
        self.shares_pct: list[float] = []
        """Per cent of all cores that other programs used in each judged training."""
        # a worker whose training was killed is ours then, with the CPU that it used
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._load = OtherLoad()
        self._is_timed = is_timed

    def add(self, *figures: Figure) -> None:
        """Adds figures to the benchmark's result table."""
        self.figures += figures

    def read_trials(
        self, measured: Iterator[dict[str, Any]], part: str | None = None
    ) -> list[dict[str, Any]]:
        """Returns results of trainings, from the user's JSON file or newly measured.

        Args:
            measured: Trains, unless the file is one that the user named.
            part: Of the trainings, which has a file of its own. Defaults to all.
        """
        path: Path | None = self.options.trials
        if path is None:
            which = 'quick' if self.is_quick else 'trials'
            which += f'_{part}' if part else ''
            path = Path(f'work_dirs/bench_{self.name}/{which}.jsonl')
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open('w', buffering=1) as file:
                file.writelines(f'{json.dumps(trial)}\n' for trial in measured)
        return [json.loads(line) for line in path.read_text().splitlines()]

    def finish(self, appendix: str = '') -> int:
        """Prints the result table, writes it if requested, and returns the exit code.

        Args:
            appendix: Markdown below the table.

        Returns:
            The exit code.
        """
        other_pct = self._load.read_pct()
        if self.shares_pct:
            other_pct = statistics.fmean(self.shares_pct)
        judged_pct = other_pct if self._is_timed else 0.0
        code = judge(self.figures, judged_pct, is_quick=self.is_quick)
        limit = f'limit {BUSY_LIMIT_PCT:g} %' if self._is_timed else 'does not matter'
        facts = {
            'date': datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
            **describe_machine(),
            'used by other programs meanwhile': f'{other_pct:.1f} % of the machine '
            f'({limit})',
        }
        parts = [
            f'# {self.title}' + (' (quick run: figures mean little)' * self.is_quick),
            render_figures(self.figures),
            *([appendix] if appendix else []),
            '\n'.join(f'- {name}: {value}' for name, value in facts.items()),
            summarise(self.name, self.figures, other_pct, code),
        ]
        page = '\n\n'.join(parts) + '\n'
        if self.options.output is not None:
            self.options.output.parent.mkdir(parents=True, exist_ok=True)
            self.options.output.write_text(page)
        print(page, end='')
        return code


def say(text: str) -> None:
    """Prints a progress message on standard error."""
    print(text, file=sys.stderr, flush=True)


def judge(
    figures: Sequence[Figure], other_pct: float, *, is_quick: bool = False
) -> int:
    """Returns a benchmark's exit code from its figures; 1 if no figure has a target.

    Args:
        figures: Of the run.
        other_pct: Share of the machine that other programs used.
        is_quick: True if a target that is missed by few cases is no failure.
    """
    if other_pct > BUSY_LIMIT_PCT:
        return TOO_BUSY
    judged = [figure for figure in figures if figure.verdict]
    missed = [figure for figure in judged if figure.verdict == 'missed']
    if is_quick:
        missed = [
            figure
            for figure in missed
            if figure.value is None or figure.target.startswith('=')
        ]
    return OK if judged and not missed else MISSED


def summarise(name: str, figures: Sequence[Figure], other_pct: float, code: int) -> str:
    """Returns a one-line summary of a benchmark run."""
    judged = [figure for figure in figures if figure.verdict]
    missed = [figure.name for figure in judged if figure.verdict == 'missed']
    text = f'{name}: {len(judged) - len(missed)} of {len(judged)} targets met'
    if code == TOO_BUSY:
        text += f'; not judged: other programs used {other_pct:.1f} % of the machine'
    elif missed:
        how = 'missed' if code == MISSED else 'missed, as few cases may'
        text += f'; {how}: {", ".join(missed)}'
    return text


def render_figures(figures: Sequence[Figure]) -> str:
    """Renders figures as a Markdown table."""
    header = ('figure', 'value', 'unit', 'target', 'verdict', 'note')
    rows = [
        (f.name, render_value(f.value), f.unit, f.target, f.verdict, f.note)
        for f in figures
    ]
    return render_table(header, rows)


def render_value(value: float | None) -> str:
    """Formats a value with four significant digits; ``None`` as ``unknown``."""
    if value is None:
        return 'unknown'
    if not math.isfinite(value) or value == 0.0:
        return f'{value:g}'
    digits = max(0, 3 - math.floor(math.log10(abs(value))))
    text = f'{value:,.{digits}f}'
    return text.rstrip('0').rstrip('.') if '.' in text else text


def describe_machine() -> dict[str, str]:
    """Returns facts on this machine that affect figures; no host name, no paths."""
    torch, facts = sys.modules.get('torch'), {}
    cpus = re.findall(r'model name\s*: (.+)', Path('/proc/cpuinfo').read_text())
    # a benchmark that needs none must not start CUDA for its name
    has_gpu = torch is not None and torch.cuda.is_initialized()
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            facts[name] = metadata.version(name)
    return {
        'CPU': cpus[0] if cpus else platform.machine(),
        'logical CPUs': str(os.cpu_count()),
        'RAM': f'{psutil.virtual_memory().total / 2**30:.1f} GiB',
        'GPU': str(torch.cuda.get_device_name()) if has_gpu and torch else 'not used',
        'kernel': f'{platform.system()} {platform.release()}',
        'Python': platform.python_version(),
        **facts,
    }


def quantile(values: Sequence[float], share: float) -> float:
    """Returns a quantile, interpolated linearly between order statistics."""
    return float(np.quantile(values, share))


@contextmanager
def busy_programs(count: int) -> Iterator[None]:
    """Context in which child processes keep the given number of cores busy."""
    command = [sys.executable, '-c', 'while True: pass']
    started = [subprocess.Popen(command) for _ in range(count)]
    try:
        if started:
            time.sleep(0.5)
        yield
    finally:
        for program in started:
            program.kill()
            program.wait()


def end_workers(iterator: Any) -> None:
    """Ends the persistent workers of a DataLoader.

    They live on until the run is collected, and are told only after 5 s each then.
    """
    if hasattr(iterator, '_shutdown_workers'):
        iterator._shutdown_workers()


def find_mmdet() -> Path:
    """Returns the folder of configs and tools inside the MMDetection package."""
    spec = importlib.util.find_spec('mmdet')
    if spec is None or spec.origin is None:
        raise SystemExit('expected MMDetection to be installed, found none')
    return Path(spec.origin).parent / '.mim'


def find_evidence(work_dir: Path) -> Path:
    """Returns the path of the evidence file in a training's folder."""
    (path,) = work_dir.rglob('gpu_efficiency.jsonl')
    return path


def read_records(evidence: Path, kind: str) -> list[dict[str, Any]]:
    """Returns all records of one kind from an evidence file, as dicts."""
    lines = map(json.loads, evidence.read_text().splitlines())
    return [record for record in lines if record['kind'] == kind]


class HoldMemory:
    """A ``worker_init_fn`` that allocates memory, as a data set with a cache would.

    Args:
        mib: Of each worker.
    """

    def __init__(self, mib: float) -> None:
        self._mib = mib
        self._held: Any = None

    def __call__(self, worker: int) -> None:
        self._held = np.ones(int(self._mib * 2**17))


def ask(*words: str) -> dict[str, Any]:
    """Runs an ``mmgpu`` command with ``--format json`` and returns its answer.

    Raises:
        SystemExit: If it refuses.
    """
    from mmgpu_hooks.commands.main import main

    answer = io.StringIO()
    with contextlib.redirect_stdout(answer):
        code = main([*words, '--format', 'json'])
    if code:
        raise SystemExit(f'expected `mmgpu {" ".join(words)}` to end with 0: {code}')
    found: dict[str, Any] = json.loads(answer.getvalue())
    return found


def recommend(evidence: Path) -> dict[str, Any]:
    """Returns the JSON answer of ``mmgpu recommend`` on a run; rewrites no config.

    A run that has changes to make needs a config: a small one is put beside it.
    """
    config = evidence.with_name('config.py')
    config.write_text('train_dataloader = dict(num_workers=2, dataset=dict())\n')
    return ask('recommend', str(evidence), '--config', str(config), '--dry-run')
