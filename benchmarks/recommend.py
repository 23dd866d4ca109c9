"""How long does `tools/recommend.py` take over a long run, and how much memory?

    python -m benchmarks.recommend

The run has full intervals as the hook writes them and ends in a rewritten config. The
command is started anew each time; the best of the repeats is judged, because anything
else on the machine can only add to it. A run more, which is not timed, tells the memory
of the command and its processes together.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import Benchmark, Figure
from benchmarks.long_run import write_run
from mmgpu_hooks.telemetry.host.proc import read_pss_bytes

ROOT = Path(__file__).resolve().parents[1]
MAX_SECONDS = 3.0
MAX_MB = 300.0
CONFIG = 'train_dataloader = dict(batch_size=16, num_workers=2, dataset=dict())\n'


@dataclass(frozen=True)
class Answer:
    """One run of the command."""

    wall_s: float
    cpu_s: float
    peak_mb: float
    text: str


def run_recommend(folder: Path) -> Answer:
    """Runs the command as a user does, without writing."""
    command = [sys.executable, str(ROOT / 'tools/recommend.py'), str(folder)]
    with tempfile.TemporaryFile('w+') as output:
        start = time.perf_counter()
        child = subprocess.Popen([*command, '--dry-run'], stdout=output)
        _, status, usage = os.wait4(child.pid, 0)
        wall_s = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read()
    if child.returncode or 'num_workers' not in text:
        raise SystemExit(f'expected a recommendation, found:\n{text}')
    return Answer(wall_s, usage.ru_utime + usage.ru_stime, _peak_mb(usage), text)


def _peak_mb(usage: resource.struct_rusage) -> float:
    return usage.ru_maxrss * 1024 / 1e6


def measure_memory(folder: Path) -> float:
    """The most that the command and its processes hold together, MB.

    Pages that they share count once.
    """
    command = [sys.executable, str(ROOT / 'tools/recommend.py'), str(folder)]
    most = 0
    with subprocess.Popen([*command, '--dry-run'], stdout=subprocess.DEVNULL) as child:
        while child.poll() is None:
            held = (read_pss_bytes(pid) for pid in (child.pid, *_children(child.pid)))
            most = max(most, sum(one or 0 for one in held))
            time.sleep(0.01)
    return most / 1e6


def _children(pid: int) -> list[int]:
    try:
        text = Path(f'/proc/{pid}/task/{pid}/children').read_text()
    except OSError:
        return []
    return [int(word) for word in text.split()]


def imports_torch(folder: Path) -> bool:
    """Whether the command imports torch on its way."""
    command = [sys.executable, '-X', 'importtime', str(ROOT / 'tools/recommend.py')]
    done = subprocess.run(
        [*command, str(folder), '--dry-run'], capture_output=True, text=True, check=True
    )
    names = {line.rpartition('|')[2].strip() for line in done.stderr.splitlines()}
    return bool(names & {'torch', 'torch._C'})


def add_figures(bench: Benchmark, folder: Path) -> None:
    """Measures long runs of one rank and of several, and a short one."""
    count, ranks = bench.options.intervals, bench.options.ranks
    config = folder / 'config.py'
    config.write_text(CONFIG)
    size = write_run(folder / 'long', config, count) / count
    write_run(folder / 'short', config, 20)
    long = [run_recommend(folder / 'long') for _ in range(bench.options.repeats)]
    short = [run_recommend(folder / 'short') for _ in range(bench.options.repeats)]
    torch = imports_torch(folder / 'short')
    best, least = (min(runs, key=lambda run: run.wall_s) for runs in (long, short))
    together_mb = measure_memory(folder / 'long')
    peak_mb = max(together_mb, *(run.peak_mb for run in long))
    title = f'{count} intervals'
    add = bench.add
    add(Figure('bytes per interval', size, 'B', note=f'mean of {count}'))
    note = f'best of {len(long)}; slowest {max(run.wall_s for run in long):.2f} s'
    is_fast = best.wall_s < MAX_SECONDS
    add(Figure(f'{title}: wall', best.wall_s, 's', f'< {MAX_SECONDS:g}', is_fast, note))
    add(Figure(f'{title}: CPU', best.cpu_s, 's'))
    is_small = peak_mb < MAX_MB
    note = f'all processes; {max(run.peak_mb for run in long):.0f} MB in the largest'
    add(Figure(f'{title}: memory', peak_mb, 'MB', f'< {MAX_MB:g}', is_small, note))
    add(Figure('modules of torch imported', int(torch), '', '0', not torch))
    add(Figure('20 intervals: wall', least.wall_s, 's', note=f'best of {len(short)}'))
    add(Figure('20 intervals: CPU', least.cpu_s, 's'))
    add(Figure('20 intervals: memory', least.peak_mb, 'MB'))
    if ranks > 1:
        write_run(folder / 'ranks', config, count, ranks)
        several = run_recommend(folder / 'ranks')
        title = f'{ranks} ranks of {title}'
        add(Figure(f'{title}: wall', several.wall_s, 's', note='one run'))
        add(Figure(f'{title}: CPU', several.cpu_s, 's'))
        add(Figure(f'{title}: memory', measure_memory(folder / 'ranks'), 'MB'))


def main() -> int:
    """Measures, prints, judges."""
    parser = argparse.ArgumentParser()
    parser.add_argument('--intervals', type=int, default=100_000)
    parser.add_argument('--ranks', type=int, default=8, help='1 leaves them out')
    parser.add_argument('--repeats', type=int, default=5)
    bench = Benchmark('recommend', __doc__ or '', parser=parser)
    with tempfile.TemporaryDirectory() as folder:
        add_figures(bench, Path(folder))
    return bench.finish()


if __name__ == '__main__':
    sys.exit(main())
