"""Would the comparison of the benchmark of overhead find a cost, were there one?

    python -m benchmarks.overhead_check [--rounds N] [--output]

Hooks of known cost in the place of ours, by the same code: nothing at all, some of
every iteration, as much of the last iteration of each interval, as much within each
step, some of a core in a thread. And in the long loop, a hook whose cost and memory
grow. About 7 minutes on 2 cores.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from mmengine.hooks import Hook

from benchmarks.accounting import EmptyHook
from benchmarks.harness import Benchmark, Figure
from benchmarks.overhead_effect import compare_arms
from benchmarks.overhead_growth import judge_growth
from benchmarks.overhead_growth_loop import ReferenceHook, run_bare_loop
from benchmarks.overhead_loop import INTERVAL
from benchmarks.overhead_pairs import MARGIN_PCT, Paired, train_pairs

ROUNDS, GROWTH_ITERATIONS = 400, 20_000
HALF_WIDTH_PCT = 0.25
"""Of the interval around nothing: half of the margin."""
BURNT_S, END_BURNT_S = 0.00025, 0.00625
"""Of iterations of about 25 ms: 1 % of each, or 25 % of each fiftieth: 0.5 %."""
_PERIOD_S, _THREAD_SHARE = 0.1, 0.01
_KEPT, _LOOKS = 1000, 200
_LEAKED_BYTES = 4 * 2**20


class BurningHook(EmptyHook):
    """Burns what it is told to, and counts what it burnt.

    Args:
        seconds: In each iteration.
        end_s: In each that ends an interval, in place of ``seconds``.
    """

    def __init__(self, seconds: float, end_s: float) -> None:
        self._seconds, self._end_s = seconds, end_s
        self.burnt_s = 0.0
        self.iterations = 0

    def after_train_iter(self, runner: Any, batch_idx: int, **rest: Any) -> None:
        """Burn."""
        is_end = (batch_idx + 1) % INTERVAL == 0
        self.burnt_s += burn(self._end_s if is_end else self._seconds)
        self.iterations += 1


class SlowingHook(BurningHook):
    """Burns within the step, where no hook runs: what colder caches would do."""

    def before_train(self, runner: Any) -> None:
        """Slow the step."""
        forward = runner.model.forward

        def slowed(*args: Any, **kwargs: Any) -> Any:
            self.burnt_s += burn(self._seconds)
            return forward(*args, **kwargs)

        runner.model.forward = slowed

    def after_train_iter(self, runner: Any, batch_idx: int, **rest: Any) -> None:
        """Count."""
        self.iterations += 1


class BurningThread(EmptyHook):
    """Burns a share of a core in a thread of its own, which never ends."""

    def before_train(self, runner: Any) -> None:
        """Start it."""
        name = 'mmgpu-planted'
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        while True:
            burn(_PERIOD_S * _THREAD_SHARE)
            time.sleep(_PERIOD_S * (1 - _THREAD_SHARE))


class GrowingHook(ReferenceHook):
    """Looks through a list in each iteration and in each interval.

    Args:
        grows: Whether the list has a fifth more values at the end of the loop, and
            4 MiB are kept that nobody needs.
    """

    def __init__(self, grows: bool) -> None:
        super().__init__()
        self._kept = [0.0] * _KEPT
        self._leaked: list[bytes] = []
        self._grows = grows

    def after_train_iter(self, runner: Any, batch_idx: int, **rest: Any) -> None:
        """Look, and be as slow at the end of an interval as our hook."""
        max(self._kept)
        if self._grows and batch_idx % (5 * GROWTH_ITERATIONS // _KEPT) == 0:
            self._kept.append(0.0)
        if (batch_idx + 1) % INTERVAL == 0:
            for _ in range(_LOOKS):
                max(self._kept)
            if self._grows:
                leaked = _LEAKED_BYTES * INTERVAL // GROWTH_ITERATIONS
                self._leaked.append(b'1' * leaked)
            super().after_train_iter(runner, batch_idx, **rest)


def _as_list(hook: Hook) -> list[Hook]:
    return [hook]


def burn(seconds: float) -> float:
    """Keep a core busy, and tell how long it really was."""
    begin = now = time.perf_counter()
    while now < begin + seconds:
        now = time.perf_counter()
    return now - begin


def main(argv: Sequence[str] | None = None) -> int:
    """Plant, compare and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument('--rounds', type=int, default=ROUNDS, metavar='N')
    benchmark = Benchmark('overhead_check', __doc__ or '', argv, parser=parser)
    warnings.filterwarnings('ignore')
    torch.set_num_threads(1)
    figures = []
    # what grows comes first: it hides in memory that the process had and let go
    for grows in (True, False):
        growth = run_bare_loop(GROWTH_ITERATIONS, GrowingHook(grows))
        figures += judge_planted_growth(judge_growth(growth)[:4], grows)
    burning = {
        'iteration': BurningHook(BURNT_S, BURNT_S),
        'interval': BurningHook(0.0, END_BURNT_S),
        'step': SlowingHook(BURNT_S, BURNT_S),
    }
    arms = {
        'none': lambda: [],
        'twin': lambda: [],
        **{name: partial(_as_list, hook) for name, hook in burning.items()},
    }
    planted_s = {'twin': 0.0}
    paired = train_pairs(benchmark.options.rounds, arms)
    for name, hook in burning.items():
        planted_s[name] = hook.burnt_s / hook.iterations
    figures += judge_planted(paired, planted_s)
    threaded = {'none': arms['none'], 'thread': lambda: [BurningThread()]}
    rounds = benchmark.options.rounds // 4
    figures.append(judge_thread(train_pairs(rounds, threaded, parts=1)))
    for figure in figures:
        benchmark.add(figure)
    return benchmark.finish()


def judge_planted(paired: Paired, planted_s: Mapping[str, float]) -> list[Figure]:
    """Found against planted; the nothing must be found to be nothing.

    Args:
        paired: Of arms that are compared with ``none``.
        planted_s: By arm, what its hook burnt per iteration.
    """
    figures = []
    for name, seconds in planted_s.items():
        found = compare_arms(paired.rounds, name, 'none')
        total, planted = found.total, 100 * seconds / found.iteration_s
        # two half-widths of an interval at 90 % are missed once in a thousand times
        is_found = abs(total.value - planted) <= 2 * total.half_width
        target = f'{planted:.2f} +- {2 * total.half_width:.2f}'
        if name == 'twin':
            target += f'; half-width <= {HALF_WIDTH_PCT:g}'
            is_found &= total.half_width <= HALF_WIDTH_PCT
        elif planted > 1.5 * MARGIN_PCT:
            target += f'; CI beyond {MARGIN_PCT:g}'
            is_found &= total.low > MARGIN_PCT
        note = (
            f'90 % CI {total.low:+.2f} to {total.high:+.2f}; half-width '
            f'{total.half_width:.2f}, of plain means {found.plain.half_width:.2f}; '
            f'{found.rounds} rounds of iterations of {1e3 * found.iteration_s:.1f} ms'
        )
        label = _LABELS[name]
        figures.append(Figure(label, total.value, '%', target, is_found, note))
    return figures


_LABELS = {
    'twin': 'no hook over no hook',
    'iteration': 'a hook that burns in each iteration',
    'interval': 'a hook that burns at ends of intervals only',
    'step': 'a hook that slows each step',
}


def judge_thread(paired: Paired) -> Figure:
    """A thread's time is found even where it delays nobody."""
    found = compare_arms(paired.rounds, 'thread', 'none', paired.threads)
    planted = 100 * _THREAD_SHARE
    is_found = found.total.high >= planted and paired.threads >= 0.9 * planted
    note = f'90 % CI {found.total.low:+.2f} to {found.total.high:+.2f}'
    return Figure(
        'a hook that burns in a thread',
        found.total.value,
        '%',
        f'CI reaches {planted:g}',
        is_found,
        f'{note}; {paired.threads:.2f} of it the CPU of the thread',
    )


def judge_planted_growth(figures: Sequence[Figure], grows: bool) -> list[Figure]:
    """The verdict of each figure of growth must be that of what was planted."""
    planted, verdict = (
        ('planted growth', 'missed') if grows else ('nothing planted', 'met')
    )
    return [
        Figure(
            f'{planted}: {f.name}',
            f.value,
            f.unit,
            'found' if grows else 'not found',
            f.verdict == verdict and 'too noisy' not in f.note,
            f.note,
        )
        for f in figures
    ]


if __name__ == '__main__':
    sys.exit(main())
