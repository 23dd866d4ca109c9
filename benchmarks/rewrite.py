"""Are all configs of MMDetection rewritten, and nothing but what was asked?

    python -m benchmarks.rewrite

The checks share no code with the product: MMEngine loads the original and the
result, MMDetection's own ``tools/train.py`` reads the command line, and the bytes
are compared here.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.harness import Benchmark, Figure
from benchmarks.rewrite_check import Checker, describe_spelling
from mmgpu_hooks.config import rewrite

MAX_REFUSED_PCT = 1.0
MAX_SECONDS = 0.1


@dataclass
class Tally:
    """What was seen over all configs."""

    files: int = 0
    out_of_scope: Counter[str] = field(default_factory=Counter)
    rewritten: Counter[str] = field(default_factory=Counter)
    refusals: dict[str, str] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    variables: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Configs in scope."""
        return sum(self.rewritten.values()) + len(self.refusals) + len(self.faults)


class LoadClock:
    """Measures the CPU time spent in MMEngine's loading."""

    def __init__(self) -> None:
        self.seconds = 0.0
        real = rewrite.read_config

        def read_config(*arguments, **options):
            start = time.process_time()
            try:
                return real(*arguments, **options)
            finally:
                self.seconds += time.process_time() - start

        rewrite.read_config = read_config


def run_all(configs: Path, limit: int | None) -> Tally:
    """Rewrites every config below a folder that loads and has a train loader."""
    tally, clock, checker = Tally(), LoadClock(), Checker()
    for path in sorted(configs.rglob('*.py'))[:limit]:
        tally.files += 1
        name = str(path.relative_to(configs))
        before = checker.load(path)
        if isinstance(before, str):
            reason = before.replace(f'{configs}/', '')
            tally.out_of_scope[f'MMEngine does not load it: {reason}'] += 1
            continue
        if ('train_dataloader', 'num_workers') not in before and (
            before.get(('train_dataloader',)) != 'dict'
        ):
            tally.out_of_scope['no train loader'] += 1
            continue
        settings = checker.settings(before)
        spelling = describe_spelling(path.read_text())
        loading, start = clock.seconds, time.process_time()
        outcome = rewrite.rewrite_config(path, settings)
        tally.seconds.append(time.process_time() - start - (clock.seconds - loading))
        if outcome.status == 'refused':
            tally.refusals[name] = str(outcome.reason)
            continue
        fault, variable = checker.judge(path, before, settings, outcome)
        if fault is not None:
            tally.faults[name] = fault
            continue
        tally.rewritten[spelling] += 1
        if variable:
            tally.variables.append(f'{name}: {variable}')
        outcome.target.unlink()
    return tally


def print_details(tally: Tally) -> None:
    """What is not in the table: reasons by name."""
    print(f'{tally.files} files; not in scope:')
    for reason, number in tally.out_of_scope.most_common():
        print(f'  {number:4}  {reason[:150]}')
    for line in tally.variables:
        print(f'  changed through its only variable: {line}')
    for title, reasons in (('refused', tally.refusals), ('faults', tally.faults)):
        print(f'{title}: {len(reasons)}')
        for name, reason in reasons.items():
            print(f'  {name}\n      {reason}')
    print()


def fold_figures(tally: Tally) -> list[Figure]:
    """The table."""
    refused_pct = 100 * len(tally.refusals) / max(1, tally.count)
    seconds = sorted(tally.seconds)
    p95_s = seconds[int(0.95 * (len(seconds) - 1))]
    slow = sum(one > MAX_SECONDS for one in seconds)
    return [
        *(
            Figure(f'rewritten, num_workers {spelling}', number)
            for spelling, number in tally.rewritten.most_common()
        ),
        Figure('configs in scope', tally.count, note=f'of {tally.files} files'),
        Figure(
            'refused',
            refused_pct,
            '%',
            f'<= {MAX_REFUSED_PCT:g}',
            refused_pct <= MAX_REFUSED_PCT,
        ),
        Figure('faults', len(tally.faults), '', '0', not tally.faults),
        Figure('CPU per config besides loading, median', median(seconds), 's'),
        Figure(
            'CPU per config besides loading, p95',
            p95_s,
            's',
            f'<= {MAX_SECONDS:g}',
            p95_s <= MAX_SECONDS,
        ),
        Figure(
            'CPU per config besides loading, largest',
            seconds[-1],
            's',
            note=f'{slow} configs take more than {MAX_SECONDS:g} s',
        ),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Rewrite them all and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument('--limit', type=int, help='only the first so many files')
    benchmark = Benchmark('rewrite', __doc__ or '', argv, parser=parser)
    spec = importlib.util.find_spec('mmdet')
    if spec is None or spec.origin is None:
        print('rewrite: expected MMDetection to be installed, found none')
        return 2
    with tempfile.TemporaryDirectory(prefix='mmgpu-bench-') as folder:
        configs = Path(folder, 'configs')
        shutil.copytree(Path(spec.origin).parent / '.mim' / 'configs', configs)
        tally = run_all(configs, benchmark.options.limit)
    print_details(tally)
    for figure in fold_figures(tally):
        benchmark.add(figure)
    return benchmark.finish()


if __name__ == '__main__':
    sys.exit(main())
