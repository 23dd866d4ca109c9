"""Rewrites all configs of the installed MMDetection, and checks each result.

The checks share no code with the product: MMEngine loads the original and the
result, MMDetection's own ``tools/train.py`` reads the command line, and the bytes
are compared here. Exit codes: 0 all targets met, 1 one is missed, 3 the machine
was too busy to judge the time.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.rewrite_check import Checker, describe_spelling  # noqa: E402
from mmgpu_hooks.configfile import prove, rewrite  # noqa: E402

RESULT = ROOT / 'benchmarks' / 'results' / 'rewrite.json'
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

        rewrite.read_config = prove.read_config = read_config


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


def print_report(tally: Tally) -> tuple[bool, bool]:
    """Prints the figures; returns whether the counts and the time are on target."""
    print(f'{tally.files} files, {tally.count} in scope; not in scope:')
    for reason, number in tally.out_of_scope.most_common():
        print(f'  {number:4}  {reason[:150]}')
    print('\nspelling of num_workers                         rewritten')
    for spelling, number in tally.rewritten.most_common():
        print(f'  {spelling:44} {number:4}')
    for line in tally.variables:
        print(f'  changed through its only variable: {line}')
    print(f'\nrefused: {len(tally.refusals)}')
    for name, reason in tally.refusals.items():
        print(f'  {name}\n      {reason}')
    print(f'faults: {len(tally.faults)}')
    for name, reason in tally.faults.items():
        print(f'  {name}\n      {reason}')
    refused = 100 * len(tally.refusals) / max(1, tally.count)
    seconds = sorted(tally.seconds)
    slow = sum(one > MAX_SECONDS for one in seconds)
    rows = [
        ('configs in scope', f'{tally.count}', ''),
        ('refused', f'{refused:.2f} %', f'<= {MAX_REFUSED_PCT:.0f} %'),
        ('faults in what was rewritten', f'{len(tally.faults)}', '0'),
        ('CPU time besides loading, median', f'{median(seconds):.3f} s', ''),
        (
            'CPU time besides loading, 95th percentile',
            f'{seconds[int(0.95 * (len(seconds) - 1))]:.3f} s',
            f'<= {MAX_SECONDS} s',
        ),
        ('CPU time besides loading, slowest', f'{seconds[-1]:.3f} s', ''),
        (f'configs that took more than {MAX_SECONDS} s', f'{slow}', ''),
    ]
    print(f'\n{"figure":44} {"seen":>12}  target')
    for label, seen, target in rows:
        print(f'{label:44} {seen:>12}  {target}')
    counts = not tally.faults and refused <= MAX_REFUSED_PCT
    return counts, seconds[int(0.95 * (len(seconds) - 1))] <= MAX_SECONDS


def write_result(tally: Tally, busy: float) -> None:
    """Keeps the figures with the machine and the versions they were taken on."""
    seconds = sorted(tally.seconds)
    record = {
        'files': tally.files,
        'in_scope': tally.count,
        'out_of_scope': dict(tally.out_of_scope),
        'rewritten': dict(tally.rewritten),
        'refusals': tally.refusals,
        'faults': tally.faults,
        'variables': tally.variables,
    }
    record['seconds'] = {
        'median': round(median(seconds), 4),
        'p95': round(seconds[int(0.95 * (len(seconds) - 1))], 4),
        'max': round(seconds[-1], 4),
    }
    record['machine'] = {
        'cpu_count': os.cpu_count(),
        'platform': platform.platform(),
        'load_per_core': round(busy, 2),
    }
    record['versions'] = {
        name: metadata.version(name) for name in ('mmengine', 'mmdet', 'libcst')
    }
    record['versions']['python'] = platform.python_version()
    record['date'] = datetime.now(timezone.utc).isoformat(timespec='seconds')
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(record, indent=1) + '\n')


def choose_code(counts: bool, fast: bool, busy: float) -> int:
    """Counts do not depend on the load; the time does, beyond one job per core."""
    if counts and fast:
        return 0
    return 3 if counts and busy > 1.5 else 1


def main() -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--limit', type=int, help='only the first so many files')
    arguments = parser.parse_args()
    spec = importlib.util.find_spec('mmdet')
    if spec is None or spec.origin is None:
        print('rewrite: expected MMDetection to be installed, found none')
        return 2
    with tempfile.TemporaryDirectory(prefix='mmgpu-bench-') as folder:
        configs = Path(folder, 'configs')
        shutil.copytree(Path(spec.origin).parent / '.mim' / 'configs', configs)
        tally = run_all(configs, arguments.limit)
    busy = os.getloadavg()[0] / (os.cpu_count() or 1)
    counts, fast = print_report(tally)
    if arguments.limit is None:
        write_result(tally, busy)
    code = choose_code(counts, fast, busy)
    word = {0: 'met', 1: 'MISSED', 3: 'machine too busy to judge the time'}[code]
    print(
        f'\nrewrite: {sum(tally.rewritten.values())} of {tally.count} rewritten, '
        f'{len(tally.refusals)} refused, {len(tally.faults)} faults, '
        f'{median(tally.seconds):.3f} s per config; targets {word}'
    )
    return code


if __name__ == '__main__':
    sys.exit(main())
