"""All ranks of a trial: ``python -m mmgpu_hooks.experiment.trial_ranks``.

It stands between the ranks of one training on this host and whoever started the
trial, to whom it is a trial like any other: rank 0 speaks for all, and the first rank
that fails ends it.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmgpu_hooks.experiment.process_tree import die_with_parent
from mmgpu_hooks.experiment.training import LOG_NAME
from mmgpu_hooks.experiment.trial_channel import TrialChannel, TrialReader
from mmgpu_hooks.experiment.trial_events import read_events

_LOOK_PERIOD_S = 0.2
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
        own = {**body, 'parent': os.getpid(), 'descriptor': write_end}
        if rank:
            # rank 0 alone is told when to end; the others go with it
            endless = {'iterations': None, 'seconds': None}
            own |= {'block': None, 'spec': {**body['spec'], **endless}}
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
    run_ranks(json.loads(sys.argv[1]))
