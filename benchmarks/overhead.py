"""What does GPUEfficiencyHook cost the training that it watches?

    python -m benchmarks.overhead [--quick] [--output]

In one run: the time that the training thread spends in it, taken at the borders of
every function it wraps; its threads; what grows over 100,000 iterations; training with
it against training without, in pairs and with a hook that only wraps as control; and
two other tools in the same loop. Figures per iteration are net of what the borders
cost, which the same account of an empty hook tells in turns with ours; the raw figure
is beside each. About 8 minutes on 2 cores; --quick measures the first part only.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence

import torch

from benchmarks.accounting import EmptyHook
from benchmarks.harness import Benchmark
from benchmarks.overhead_cost import (
    account_bare,
    account_trainings,
    judge_cost,
    judge_threads,
    judge_tight,
    measure_threads,
)
from benchmarks.overhead_growth import judge_growth
from benchmarks.overhead_growth_loop import run_bare_loop
from benchmarks.overhead_pairs import judge_pairs, train_pairs
from benchmarks.overhead_peers import measure_peers
from mmgpu_hooks import GPUEfficiencyHook

ROUNDS, SHAM_ROUNDS, QUICK_ROUNDS = 3, 1, 2
PAIRS = 800
THREAD_ITERATIONS = 1600
GROWTH_ITERATIONS, TIGHT_ITERATIONS = 100_000, 3000


def main(argv: Sequence[str] | None = None) -> int:
    """Measure every part and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        '--quick', action='store_true', help='the cost of the training thread only'
    )
    benchmark = Benchmark('overhead', __doc__ or '', argv, parser=parser)
    warnings.filterwarnings('ignore')
    torch.set_num_threads(1)
    is_quick = benchmark.options.quick

    grown = None
    if not is_quick:
        _say(f'growth over {GROWTH_ITERATIONS:,} iterations')
        grown = run_bare_loop(GROWTH_ITERATIONS, GPUEfficiencyHook(summary=False))
    _say('cost of the training thread')
    tight = account_bare(EmptyHook(), TIGHT_ITERATIONS)
    ours = account_bare(GPUEfficiencyHook(summary=False), TIGHT_ITERATIONS)
    rounds, shams = (QUICK_ROUNDS, 1) if is_quick else (ROUNDS, SHAM_ROUNDS)
    figures = judge_cost(account_trainings(rounds, shams)) + judge_tight(ours, tight)
    if grown is not None:
        _say('threads')
        figures += judge_threads(measure_threads(THREAD_ITERATIONS))
        figures += judge_growth(grown)
        _say('with the hook against without')
        figures += judge_pairs(train_pairs(PAIRS))
        _say('other tools in the same loop')
        figures += measure_peers()
    for figure in figures:
        benchmark.add(figure)
    return benchmark.finish()


def _say(part: str) -> None:
    print(f'measuring: {part} ...', file=sys.stderr, flush=True)


if __name__ == '__main__':
    sys.exit(main())
