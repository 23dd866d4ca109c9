"""Benchmark: time to set up a new clone with ``make``, step by step.

    python -m benchmarks.setup_time [--against COMMIT] [--rounds N] [--output]

Each commit is cloned and set up by ``make setup`` twice: on a machine that has kept
nothing (empty caches of pip and of ours), and once more with what the first has kept.
With ``--against`` another commit is measured in turns with this one. Packages come from
where pip has them; what they take is the network's, so the targets are of MMCV alone.
Uncommitted changes are not measured. 5 minutes a round and a commit, on two idle cores;
20 for commits that compiled MMCV file by file.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import Benchmark, Figure, OtherLoad, at_most, say

ROOT = Path(__file__).resolve().parents[1]
STEPS = {
    '.python': 'make the virtual environment',
    '.requirements': 'install the pinned packages',
    '.mmcv': 'install MMCV, MMEngine and MMDetection',
    '.package': 'install this package',
}
"""Steps of the set-up in order, with the stamp file that each writes."""
MMCV = '.mmcv'
FIRST, NEXT = 'first clone', 'next clone'
MAX_FIRST_CPU_S, MAX_NEXT_S = 300.0, 60.0
"""Limits of MMCV's build: CPU seconds to compile, seconds with a cached wheel."""


@dataclass(frozen=True)
class Step:
    """Wall clock and CPU seconds of one set-up step."""

    wall_s: float
    cpu_s: float


SetUp = Mapping[str, Step]
"""Wall clock and CPU seconds of each step of one set-up, by stamp file."""
Measured = Mapping[tuple[str, str], Sequence[SetUp]]
"""Measured set-ups by commit, and by clone: first one, or one with a cached wheel."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark: times the set-up of new clones, and prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument('--against', metavar='COMMIT', help='measure it too, in turns')
    parser.add_argument('--rounds', type=int, default=1, metavar='N')
    benchmark = Benchmark('setup_time', __doc__ or '', argv, parser=parser)
    options = benchmark.options
    names = ['HEAD', *([options.against] if options.against else [])]
    found: dict[tuple[str, str], list[SetUp]] = defaultdict(list)
    for _ in range(1 if benchmark.is_quick else options.rounds):
        for name in names:
            with tempfile.TemporaryDirectory() as folder:
                for which in [NEXT] if benchmark.is_quick else [FIRST, NEXT]:
                    load = OtherLoad()
                    caches = None if benchmark.is_quick else Path(folder)
                    found[name, which].append(set_up(name, which, caches))
                    benchmark.shares_pct.append(load.read_pct())
    benchmark.add(*list_figures(found))
    return benchmark.finish()


def set_up(commit: str, which: str, caches: Path | None) -> SetUp:
    """Clones a commit and runs ``make`` in the clone, timing each step.

    Args:
        commit: As git names it.
        which: What is said while it lasts.
        caches: Where pip and we keep what is fetched and built; by default where they
            always do.

    Raises:
        SystemExit: If the set-up fails.
    """
    environment = dict(os.environ)
    if caches is not None:
        environment['XDG_CACHE_HOME'] = str(caches / 'cache')
        environment['PIP_CACHE_DIR'] = str(caches / 'pip')
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder, 'clone')
        git = ['git', '-C', str(ROOT)]
        sha = subprocess.check_output([*git, 'rev-parse', commit], text=True).strip()
        subprocess.run(['git', 'clone', '--quiet', str(ROOT), str(clone)], check=True)
        subprocess.run(['git', '-C', str(clone), 'checkout', '-q', sha], check=True)
        say(f'{commit} ({sha[:8]}), {which}')
        base = getattr(sys, '_base_executable', sys.executable)
        flags = f'PIP_FLAGS={os.environ.get("PIP_FLAGS", "")}'
        make = ['make', f'PYTHON={base}', flags]
        steps = {}
        for stamp in STEPS:
            start, cpu_start_s = time.monotonic(), read_children_cpu_s()
            made = subprocess.run([*make, f'.venv/{stamp}'], cwd=clone, env=environment)
            if made.returncode:
                raise SystemExit(f'setup_time: {commit} could not be set up')
            cpu_s = read_children_cpu_s() - cpu_start_s
            steps[stamp] = Step(time.monotonic() - start, cpu_s)
        return steps


def read_children_cpu_s() -> float:
    """Returns the CPU seconds of all ended child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def list_figures(found: Measured) -> Iterator[Figure]:
    """Returns figures on the time of each set-up step, as medians over all rounds."""
    for (commit, which), set_ups in found.items():
        of = f'{commit}, {which}'
        total_s = statistics.median(sum_wall(steps) for steps in set_ups)
        yield Figure(f'{of}: all', total_s, 's', note=f'rounds: {len(set_ups)}')
        for stamp, text in STEPS.items():
            wall_s = statistics.median(steps[stamp].wall_s for steps in set_ups)
            cpu_s = statistics.median(steps[stamp].cpu_s for steps in set_ups)
            is_judged = commit == 'HEAD' and stamp == MMCV
            if is_judged and which == NEXT:
                yield at_most(f'{of}: {text}', wall_s, MAX_NEXT_S, 's')
            else:
                yield Figure(f'{of}: {text}', wall_s, 's')
            if is_judged and which == FIRST:
                yield at_most(f'{of}: CPU of that', cpu_s, MAX_FIRST_CPU_S, 's')
            elif stamp == MMCV:
                yield Figure(f'{of}: CPU of that', cpu_s, 's')
    commits = list(dict.fromkeys(commit for commit, _ in found))
    for which in (FIRST, NEXT):
        if len(commits) == 2 and all((commit, which) in found for commit in commits):
            ratios = [
                sum_wall(new) / sum_wall(old)
                for new, old in zip(*(found[commit, which] for commit in commits))
            ]
            name = f'{which}: {commits[0]} over {commits[1]}, all'
            yield Figure(name, statistics.median(ratios), note='median of the rounds')


def sum_wall(steps: SetUp) -> float:
    """Returns the wall clock seconds of a whole set-up."""
    return sum(step.wall_s for step in steps.values())


if __name__ == '__main__':
    sys.exit(main())
