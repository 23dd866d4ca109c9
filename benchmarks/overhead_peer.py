"""Program of a child process that trains with TraceML and prints its overhead.

    python -m benchmarks.overhead_peer PORT SESSION ITERATIONS

TraceML patches classes for the whole process, so it has one of its own. Each function
that it patches gets a border beneath and one above, as our own hook's do. The same
training without it gives what the borders cost.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.optim import optimizer as torch_optimizer
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from benchmarks.overhead import Account, Network, build, split_ends, train

PATCHED = (
    (nn.Module, '__call__'),
    (torch.Tensor, 'backward'),
    (torch.autograd, 'backward'),
    (torch.Tensor, 'to'),
)


class TimedIterator:
    """Iterator whose time in ``next`` is added to an account of seconds."""

    def __init__(self, iterator: Iterator[Any], account: Account) -> None:
        self._next = account.above(iterator.__next__)

    def __iter__(self) -> TimedIterator:
        return self

    def __next__(self) -> Any:
        return self._next()


def border_optimizer_hooks(account: Account) -> None:
    """Wraps TraceML's optimizer hooks, installed in the first step, to time them."""
    for hooks in (
        torch_optimizer._global_optimizer_pre_hooks,
        torch_optimizer._global_optimizer_post_hooks,
    ):
        for key, hook in hooks.items():
            if hook.__name__ != 'counted':
                hooks[key] = account.above(hook)


def train_once(
    trace: Callable[[nn.Module], Any], account: Account, iterations: int
) -> list[float]:
    """Trains once; returns the seconds in TraceML's calls, for all but one iteration.

    Args:
        trace: Gives the context of each step.
        account: With borders beneath all that TraceML patches.
        iterations: Of the training.
    """
    spent_s: list[float] = []
    make = DataLoader.__iter__
    above = [(o, name, account.above(getattr(o, name))) for o, name in PATCHED]
    begin = account.above(lambda step: step.__enter__())
    end = account.above(lambda step: step.__exit__(None, None, None))
    create = account.above(trace)
    with tempfile.TemporaryDirectory() as folder:
        runner = build(Path(folder), Network(), iterations, [])
        original = runner.model.train_step

        def train_step(*args: Any, **kwargs: Any) -> Any:
            step = create(runner.model)
            begin(step)
            spent_s.append(account.spent_s)
            result = original(*args, **kwargs)
            end(step)
            border_optimizer_hooks(account)
            return result

        runner.model.train_step = train_step
        timed = (
            DataLoader,
            '__iter__',
            lambda loader: TimedIterator(make(loader), account),
        )
        with contextlib.ExitStack() as stack:
            for attribute in (*above, timed):
                stack.enter_context(mock.patch.object(*attribute))
            train(runner)
    return [after - before for before, after in zip(spent_s[1:], spent_s[2:])]


def main() -> int:
    """Trains with and without TraceML; prints the seconds measured around its calls."""
    port, session, iterations = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    torch.set_num_threads(1)
    # what it prints goes to the other stream
    with os.fdopen(os.dup(1), 'w') as answer:
        os.dup2(2, 1)
        account = Account()
        for owner, name in PATCHED:
            setattr(owner, name, account.beneath(getattr(owner, name)))
        base = _BaseDataLoaderIter
        base.__next__ = account.beneath(base.__next__)
        empty_s = train_once(
            lambda model: contextlib.nullcontext(), account, iterations
        )
        import traceml_ai as traceml
        from traceml_ai.sdk import initial

        traceml.init(
            ui_mode='summary',
            session_id=session,
            aggregator_port=port,
            on_missing_aggregator='raise',
        )
        traced_s = train_once(traceml.trace_step, account, iterations)
        initial._stop_runtime_for_init()
        arms = [split_ends(costs_s, 1) for costs_s in (traced_s, empty_s)]
        json.dump([[arm.ordinary, arm.ends] for arm in arms], answer)
    return 0


if __name__ == '__main__':
    sys.exit(main())
