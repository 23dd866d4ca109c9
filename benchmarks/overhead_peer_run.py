"""Trains with one peer in this process, and prints as JSON what it cost.

    python -m benchmarks.overhead_peer_run {traceml,nvitop} --port PORT --session NAME

A peer patches classes for the whole process: so each has a process of its own. Each
function that it patches gets a border beneath and one above, as our own hook's do.
The same training without the peer tells what the borders cost.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from mmengine.hooks import Hook
from torch import nn
from torch.optim import optimizer as torch_optimizer
from torch.utils.data import DataLoader
from torch.utils.data import dataloader as torch_dataloader

from benchmarks.accounting import Borders, ThreadCosts
from benchmarks.overhead_figures import quantile, split_ends
from benchmarks.overhead_loop import INTERVAL, Network, build, stamp_steps, train

RUN_ITERATIONS = 304


class TimedIterator:
    """An iterator whose ``next`` has a border above it."""

    def __init__(self, iterator: Iterator[Any], borders: Borders) -> None:
        self._next = borders.above('next(loader)', iterator.__next__)

    def __iter__(self) -> TimedIterator:
        return self

    def __next__(self) -> Any:
        return self._next()


class TraceML:
    """TraceML as its users run it: ``traceml.init()`` and ``trace_step``.

    Args:
        borders: Laid beneath what it patches, before it does.
    """

    distribution = 'traceml-ai'
    _patched = (
        (nn.Module, '__call__'),
        (torch.Tensor, 'backward'),
        (torch.autograd, 'backward'),
        (torch.Tensor, 'to'),
    )

    def __init__(self, borders: Borders) -> None:
        self._borders = borders
        self._trace: Callable[[nn.Module], Any] | None = None
        for owner, name in self._patched:
            beneath = borders.beneath(self._label(owner, name), getattr(owner, name))
            setattr(owner, name, beneath)
        of = torch_dataloader._BaseDataLoaderIter
        of.__next__ = borders.beneath('next(loader)', of.__next__)

    def _label(self, owner: Any, name: str) -> str:
        return f'{owner.__name__}.{name}'

    def start(self, arguments: argparse.Namespace) -> None:
        """Start it; an aggregator listens already."""
        import traceml_ai as traceml

        traceml.init(
            ui_mode='summary',
            session_id=arguments.session,
            aggregator_port=arguments.port,
            on_missing_aggregator='raise',
        )
        self._trace = traceml.trace_step

    @contextlib.contextmanager
    def bordered(self, runner: Any) -> Iterator[None]:
        """Lay the borders above what is patched now, for one training."""
        borders, model = self._borders, runner.model
        before = [(o, n, getattr(o, n)) for o, n in self._patched]
        make = DataLoader.__iter__
        for owner, name, function in before:
            above = borders.above(self._label(owner, name), function)
            setattr(owner, name, above)
        DataLoader.__iter__ = lambda loader: TimedIterator(make(loader), borders)
        original, trace = model.train_step, self._trace or contextlib.nullcontext
        begin = borders.above('trace_step', lambda step: step.__enter__())
        end = borders.above('trace_step', lambda step: step.__exit__(None, None, None))
        create = borders.above('trace_step', lambda: trace(model))

        def train_step(*args: Any, **kwargs: Any) -> Any:
            step = create()
            begin(step)
            result = original(*args, **kwargs)
            end(step)
            self._border_optimizer_hooks()
            return result

        model.train_step = train_step
        try:
            yield
        finally:
            for owner, name, function in before:
                setattr(owner, name, function)
            DataLoader.__iter__ = make

    def _border_optimizer_hooks(self) -> None:
        # installed in its first step
        for hooks in (
            torch_optimizer._global_optimizer_pre_hooks,
            torch_optimizer._global_optimizer_post_hooks,
        ):
            for key, hook in hooks.items():
                if hook.__name__ != 'counted':
                    hooks[key] = self._borders.above('Optimizer.step hooks', hook)

    def stop(self) -> None:
        """End its threads."""
        from traceml_ai.sdk import initial

        initial._stop_runtime_for_init()


class Nvitop:
    """nvitop's collector with its thread, asked at the end of each interval."""

    distribution = 'nvitop'

    def __init__(self, borders: Borders) -> None:
        self._collect = borders.above('collect()', self._nothing)
        self._borders = borders
        self._collector: Any = None

    def _nothing(self) -> dict[str, float]:
        return {}

    def start(self, arguments: argparse.Namespace) -> None:
        """Start it, on the devices that this process sees."""
        from nvitop import Device, ResourceMetricCollector

        devices = Device.cuda.all() if torch.cuda.is_available() else []
        self._collector = ResourceMetricCollector(devices=devices).activate('train')
        self._collect = self._borders.above('collect()', self._collector.collect)

    @contextlib.contextmanager
    def bordered(self, runner: Any) -> Iterator[None]:
        """Ask it in one training."""
        collect = self._collect

        class Collect(Hook):
            priority = 55

            def after_train_iter(self, runner: Any, batch_idx: int, **_: Any) -> None:
                if (batch_idx + 1) % INTERVAL == 0:
                    collect()

        runner.register_hook(Collect())
        yield

    def stop(self) -> None:
        """End its thread."""
        self._collector.stop()


def train_once(peer: Any, borders: Borders) -> list[float]:
    """Seconds by the borders, of each iteration after the first."""
    spent_s: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        runner = build(Path(folder), Network(), RUN_ITERATIONS, [])
        stamp_steps(runner.model, lambda: spent_s.append(sum(borders.read_s())))
        with peer.bordered(runner):
            train(runner)
    # the step's own border, if it has one, is around the stamp: from there on
    return [after - before for before, after in zip(spent_s[1:], spent_s[2:])]


def measure(peer_type: Any, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train without the peer and with it."""
    borders = Borders()
    peer = peer_type(borders)
    empty = split_ends(train_once(peer, borders), INTERVAL, 1)
    threads = ThreadCosts()
    with threads.watch():
        peer.start(arguments)
        begin = time.perf_counter()
        ours = split_ends(train_once(peer, borders), INTERVAL, 1)
        wall_s = time.perf_counter() - begin
        threads_s = threads.read_s()
        peer.stop()
    border_s = statistics.median(empty.ordinary)
    ordinary_s = statistics.median(ours.ordinary)
    return {
        'version': metadata.version(peer.distribution),
        'raw_s': ordinary_s,
        'border_s': border_s,
        'p95_s': quantile(ours.ordinary, 0.95) - border_s,
        'ends_s': statistics.median(ours.ends) - ordinary_s,
        'ends_border_s': statistics.median(empty.ends) - border_s,
        'threads': {
            name: seconds / wall_s
            for name, seconds in threads_s.items()
            if name not in ('MainThread', 'QueueFeederThread')
        },
    }


def main() -> int:
    """Run one peer."""
    parser = argparse.ArgumentParser()
    parser.add_argument('peer', choices=['traceml', 'nvitop'])
    parser.add_argument('--port', type=int, default=0)
    parser.add_argument('--session', default='overhead')
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    peer = {'traceml': TraceML, 'nvitop': Nvitop}[arguments.peer]
    # what a peer prints goes to the other stream
    with os.fdopen(os.dup(1), 'w') as answer:
        os.dup2(2, 1)
        json.dump(measure(peer, arguments), answer)
    return 0


if __name__ == '__main__':
    sys.exit(main())
