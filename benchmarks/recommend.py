"""How long does `tools/recommend.py` take, and how much memory?

    python -m benchmarks.recommend

It reads a long run, the ranks of a run, and a short one, as the hook writes them with
every figure there, and ends in a rewritten config. The command is started anew each
time; the best of the repeats is judged, because anything else on the machine can only
add to it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import Benchmark, Figure
from benchmarks.long_run import write_run

LONG, RANKS, OF_RANK = 20_000, 8, 2_000
MOST_S, MOST_RANKS_S = 3.0, 4.0
MOST_MB, MOST_RANKS_MB = 300.0, 400.0
MOST_RATIO = 3.0
"""Of a short run over the libraries that it cannot do without."""
LIBRARIES = [sys.executable, '-c', 'import numpy, msgspec']
CONFIG = 'train_dataloader = dict(batch_size=16, num_workers=2, dataset=dict())\n'


@dataclass(frozen=True)
class Cost:
    """One run of a command."""

    wall_s: float
    cpu_s: float
    peak_mb: float


def run_command(command: list[str]) -> Cost:
    """Run it as a user does, and see to it that it succeeds."""
    start = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    wall_s = time.perf_counter() - start
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f'expected {command} to succeed, found {child.returncode}')
    cpu_s = usage.ru_utime + usage.ru_stime
    return Cost(wall_s, cpu_s, usage.ru_maxrss * 1024 / 1e6)


WITHOUT_MMENGINE = """\
import sys
sys.modules['mmengine'] = None
from mmgpu_hooks.commands.main import main
sys.exit(main())
"""
"""A host that only analyses: loading the config with MMEngine is not our cost."""


def recommend(folder: Path) -> list[str]:
    """The command that judges a run and writes nothing."""
    command = [sys.executable, '-c', WITHOUT_MMENGINE, 'recommend', str(folder)]
    return [*command, '--dry-run', '--format', 'json']


def imports_torch(folder: Path) -> bool:
    """Whether the command imports torch on its way."""
    python, *rest = recommend(folder)
    done = subprocess.run(
        [python, '-X', 'importtime', *rest], capture_output=True, text=True, check=True
    )
    names = {line.rpartition('|')[2].strip() for line in done.stderr.splitlines()}
    return bool(names & {'torch', 'torch._C'})


def add_figures(bench: Benchmark, folder: Path) -> None:
    """Measure a long run, one of several ranks and a short one."""
    config, repeats, add = folder / 'config.py', bench.options.repeats, bench.add
    config.write_text(CONFIG)
    size = write_run(folder / 'long', config, LONG) / LONG
    add(Figure('bytes per interval', size, 'B', note=f'mean of {LONG}'))
    write_run(folder / 'ranks', config, OF_RANK, RANKS)
    write_run(folder / 'short', config, 20)
    for name, title, most_s, most_mb in (
        ('long', f'{LONG} intervals', MOST_S, MOST_MB),
        ('ranks', f'{RANKS} ranks of {OF_RANK}', MOST_RANKS_S, MOST_RANKS_MB),
    ):
        costs = [run_command(recommend(folder / name)) for _ in range(repeats)]
        best = min(costs, key=lambda cost: cost.wall_s)
        peak_mb = max(cost.peak_mb for cost in costs)
        slowest_s = max(cost.wall_s for cost in costs)
        note = f'best of {repeats}; slowest {slowest_s:.2f} s; CPU {best.cpu_s:.2f} s'
        is_fast, is_small = best.wall_s < most_s, peak_mb < most_mb
        add(Figure(f'{title}: wall', best.wall_s, 's', f'< {most_s:g}', is_fast, note))
        add(Figure(f'{title}: memory', peak_mb, 'MB', f'< {most_mb:g}', is_small))
    # in turns, as a machine has slow moments
    short_s, libraries_s = (
        min(both)
        for both in zip(
            *(
                (
                    run_command(recommend(folder / 'short')).cpu_s,
                    run_command(LIBRARIES).cpu_s,
                )
                for _ in range(2 * repeats)
            )
        )
    )
    ratio = short_s / libraries_s
    note = f'{short_s:.3f} s over {libraries_s:.3f} s of CPU, best of {2 * repeats}'
    add(
        Figure(
            "20 intervals over 'import numpy, msgspec'",
            ratio,
            '',
            f'<= {MOST_RATIO:g}',
            ratio <= MOST_RATIO,
            note,
        )
    )
    torch = imports_torch(folder / 'short')
    add(Figure('modules of torch imported', int(torch), '', '0', not torch))


def main() -> int:
    """Measures, prints, judges."""
    parser = argparse.ArgumentParser()
    parser.add_argument('--repeats', type=int, default=5)
    bench = Benchmark('recommend', __doc__ or '', parser=parser)
    with tempfile.TemporaryDirectory() as folder:
        add_figures(bench, Path(folder))
    return bench.finish()


if __name__ == '__main__':
    sys.exit(main())
