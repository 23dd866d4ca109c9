"""The process of one trial: ``python -m mmgpu_hooks.experiment.trial_child``.

It trains in earnest: MMEngine's own Runner on the user's config. Whoever started it
reads from a pipe how far it is and how it ended; everything printed is in its log.
A trial of several ranks has a process between: rank 0 speaks for all, and the first
rank that fails ends it.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mmgpu_hooks.experiment.process_tree import die_with_parent
from mmgpu_hooks.experiment.trial_config import read_trial_config
from mmgpu_hooks.experiment.trial_events import (
    ENDLESS,
    LOG_NAME,
    TrialChannel,
    TrialReader,
    classify_error,
    read_events,
)
from mmgpu_hooks.schema import TrialSpec

_LOOK_PERIOD_S = 0.2


def run_child(body: dict[str, Any]) -> None:
    """Train, and tell how it ended.

    Args:
        body: ``spec`` with the fields of a TrialSpec; ``parent``, a process id; the
            pipe ``descriptor``; iterations of the first ``block``.
    """
    die_with_parent(body['parent'])
    channel = TrialChannel(body['descriptor'])
    hook = None
    status: str = 'completed'
    line: str | None = None
    try:
        # late: MMEngine's hooks bring torch along
        from mmgpu_hooks.experiment import trial_hooks

        spec = TrialSpec(**body['spec'])
        hook = trial_hooks.TrialHook(channel, body['block'], _read_words())
        with contextlib.suppress(trial_hooks.TrialOver):
            _train(spec, hook)
    # a training may end in any way, and each of them is a result
    except BaseException as error:  # noqa: BLE001
        traceback.print_exc()
        status, line = classify_error(type(error).__name__, str(error))
    done = hook.done if hook is not None else 0
    channel.send('over', status=status, error=line, iterations=done)


def _train(spec: TrialSpec, hook: Any) -> None:
    from mmengine.registry import RUNNERS
    from mmengine.runner import Runner

    # the layout of the config's copies is seconds of every start
    layout: Any = importlib.import_module('mmengine.config.config')
    if hasattr(layout, 'FormatCode'):
        layout.FormatCode = lambda text, **_: (text, True)
    config = read_trial_config(spec)
    if spec.ranks > 1:
        _join_without_cuda(config)
    runner: Any = (
        RUNNERS.build(config) if 'runner_type' in config else Runner.from_cfg(config)
    )
    runner.register_hook(hook)
    runner.train()


def _read_words() -> Iterator[int]:
    """Iterations of the next block, for as long as somebody tells them."""
    for line in sys.stdin:
        yield int(line)


def _join_without_cuda(config: Any) -> None:
    """Join a process group over gloo, and have the model wrapped for it.

    MMEngine sets a CUDA card before it joins ranks over any backend, and gives the
    model's wrapper that card; a group that is there already is left alone. With CUDA
    nothing is done.

    Args:
        config: MMEngine's, of a trial; its wrapper is set where it has none.
    """
    import torch

    if torch.cuda.is_available():
        return
    torch.distributed.init_process_group('gloo')
    if config.get('model_wrapper_cfg') is None:
        config.model_wrapper_cfg = {
            'type': 'MMDistributedDataParallel',
            'device_ids': None,
            'broadcast_buffers': False,
            'find_unused_parameters': config.get('find_unused_parameters', False),
        }


_AGENT = 'TORCHELASTIC_'
"""Variables of a torchrun that started us: its ranks would look for its store."""


def run_ranks(body: Mapping[str, Any]) -> None:
    """Start the ranks, pass on what they tell, and return when one of them is over.

    Those that are left then die with this process.

    Args:
        body: As for a single process of a trial; ``spec`` says how many ranks.
    """
    die_with_parent(body['parent'])
    channel = TrialChannel(body['descriptor'])
    port = _find_port()
    with contextlib.ExitStack() as exits:
        ranks = []
        for rank in range(body['spec']['ranks']):
            ranks.append(_Rank(rank, body, _environ(rank, body, port)))
            exits.callback(ranks[-1].close)
        is_over = False
        while not is_over:
            told = [(one.rank, event) for one in ranks for event in one.read_events()]
            for event in (event for rank, event in told if not rank):
                if event['event'] != 'over':
                    channel.send(**event)
            over = choose_end(told)
            if over is not None:
                channel.send(**over)
                is_over = True


def choose_end(told: list[tuple[int, dict[str, Any]]]) -> dict[str, Any] | None:
    """How the training ended, if it has.

    Where one rank runs out of memory the others fail too, for want of an answer: the
    first reason counts, not what followed.

    Args:
        told: Events, each with its rank.
    """
    over = [
        (rank, event)
        for rank, event in told
        # a rank that ends well before rank 0 had nothing left to train
        if event['event'] == 'over' and (not rank or event['status'] != 'completed')
    ]
    if not over:
        return None
    rank, event = min(over, key=lambda e: (e[1]['status'] != 'out_of_memory', e[0]))
    if rank and event['error']:
        event = {**event, 'error': f'rank {rank}: {event["error"]}'}
    return event


class _Rank:
    """The process of one rank."""

    def __init__(
        self, rank: int, body: Mapping[str, Any], environ: Mapping[str, str]
    ) -> None:
        self.rank = rank
        name = Path(LOG_NAME)
        folder = Path(body['spec']['folder'])
        self._log = folder / (f'{name.stem}_rank{rank}{name.suffix}' if rank else name)
        read_end, write_end = os.pipe()
        self._reader = TrialReader(read_end)
        own = {**body, 'rank': rank, 'parent': os.getpid(), 'descriptor': write_end}
        if rank:
            # rank 0 alone is told when to end; the others go with it
            own['block'] = ENDLESS
        command = [sys.executable, '-m', 'mmgpu_hooks.experiment.trial_child']
        with contextlib.ExitStack() as exits:
            exits.callback(os.close, write_end)
            # what this process prints is in the trial's log already
            log = exits.enter_context(self._log.open('wb')) if rank else None
            self._process = subprocess.Popen(
                [*command, json.dumps(own)],
                stdin=subprocess.DEVNULL if rank else None,
                stdout=log,
                stderr=log,
                env=environ,
                pass_fds=(write_end,),
            )

    def read_events(self) -> list[dict[str, Any]]:
        """What it told since; of rank 0 it is waited for."""
        wait_s = 0 if self.rank else _LOOK_PERIOD_S
        return read_events(self._process, self._reader, self._log, wait_s)

    def close(self) -> None:
        """End it, whatever it is at."""
        self._process.kill()
        self._process.wait()
        self._reader.close()


def _find_port() -> int:
    """A port that was free a moment ago, for the ranks to meet at."""
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return int(probe.getsockname()[1])


def _environ(rank: int, body: Mapping[str, Any], port: int) -> dict[str, str]:
    """As torchrun sets it for its ranks."""
    ranks = str(body['spec']['ranks'])
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_AGENT)}
    return {
        **kept,
        'MASTER_ADDR': '127.0.0.1',
        'MASTER_PORT': str(port),
        'RANK': str(rank),
        'LOCAL_RANK': str(rank),
        'WORLD_SIZE': ranks,
        'LOCAL_WORLD_SIZE': ranks,
    }


if __name__ == '__main__':
    _body = json.loads(sys.argv[1])
    _is_whole = _body['spec']['ranks'] > 1 and 'rank' not in _body
    (run_ranks if _is_whole else run_child)(_body)
