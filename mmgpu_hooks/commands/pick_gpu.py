"""``mmgpu pick-gpu``: which card is free, for people, scripts and commands."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from mmgpu_hooks.commands import exit_codes, options
from mmgpu_hooks.commands.output import print_sections, warner
from mmgpu_hooks.experiment.cards import (
    VARIABLE,
    Card,
    CardLocks,
    describe_shortage,
    judge_cards,
    read_cards,
)
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.show.document import Section, Table
from mmgpu_hooks.show.figures import format_bytes, format_pct

_POLL_S = 2.0
"""Seconds between two readings while waiting."""
_RESERVED_S = 60.0
"""How long others are kept off the cards that were printed, for a script to start."""
_warn = warner('pick-gpu')


def _parse_least_free(match: re.Match[str]) -> tuple[int, float] | None:
    """Bytes and per cent out of ``10GiB`` or ``50%``."""
    number = float(match[1])
    if match[2] is None:
        return (0, number) if number <= 100 else None
    return int(number * 1024 ** ('kmgt'.index(match[2].lower()) + 1)), 0.0


LEAST_FREE = options.parsed(
    r'(\d{1,12}(?:\.\d{1,12})?)\s*(?:%|([kmgt])(?:i?b)?)',
    _parse_least_free,
    'a size with its unit such as 10GiB, or a share such as 50%',
)


@options.command(
    'pick-gpu',
    'that of the command; without one, 0 picked, 1 fewer cards are free than asked for',
)
@click.option('-n', '--count', type=options.COUNT, default=1, help='Cards to pick.')
@click.option(
    '--min-free',
    type=LEAST_FREE,
    default='10%',
    metavar='SIZE',
    help='Least free memory, such as 10GiB or 50%.',
)
@click.option(
    '--wait',
    type=options.parsed(
        r'\d{1,9}(?:\.\d{1,9})?', lambda match: float(match[0]), 'seconds, 0 or more'
    ),
    default=0.0,
    metavar='SECONDS',
    help='Wait so long for cards to become free.',
)
@click.option(
    '--format',
    'form',
    type=click.Choice(('table', 'env')),
    help='table: show all, take nothing; env: CUDA_VISIBLE_DEVICES=... By default '
    'table on a terminal, else env.',
)
@click.option(
    '--leases',
    type=options.parsed('.+', lambda match: Path(match[0]), 'a folder'),
    metavar='DIR',
    help='Folder of the lock files; by default /tmp/mmgpu-UID, of this user.',
)
@click.argument('program', nargs=-1, type=click.UNPROCESSED, metavar='[-- COMMAND...]')
def pick_gpu(
    count: int,
    min_free: tuple[int, float],
    wait: float,
    form: str | None,
    leases: Path | None,
    program: Sequence[str],
) -> int:
    """Pick the cards with the most free memory, the least busy ones first.

    Run a command on them, which keeps them until it ends, or print
    CUDA_VISIBLE_DEVICES=... for a script, for which they are kept a minute. Two that
    are started together do not pick the same card.

    \b
    mmgpu pick-gpu                                    a table of all cards
    mmgpu pick-gpu -n 2 -- python tools/train.py CONFIG
    cards=$(mmgpu pick-gpu) && env $cards python tools/train.py CONFIG
    """
    if program and shutil.which(program[0]) is None:
        raise UserError(f'expected a command to run, found no {program[0]!r} on PATH.')
    form = form or ('table' if sys.stdout.isatty() else 'env')
    is_table = form == 'table' and not program
    locks = CardLocks(leases)

    def pick() -> tuple[list[Card], list[Card]]:
        cards = judge_cards(
            read_cards(),
            os.environ,
            min_free_bytes=min_free[0],
            min_free_pct=min_free[1],
        )
        try:
            return locks.pick(cards, count)
        except UserError:
            if not is_table:
                raise
            # a table takes nothing: it shows what the driver says
            return [card for card in cards if card.reason is None][:count], cards

    picked, cards = _wait_for_cards(pick, count, wait)
    if is_table:
        _print_table(cards, picked)
    if len(picked) < count:
        _warn(f'{describe_shortage(cards, count)}; --wait SECONDS waits for them.')
        return exit_codes.NO
    visible = ','.join(card.uuid for card in picked)
    if program:
        labels = ', '.join(f'GPU {card.index} ({card.name})' for card in picked)
        _warn(f'picked {labels}')
        locks.pass_on()
        _become(program, visible)
    if not is_table:
        locks.reserve(_RESERVED_S)
    print(f'{VARIABLE}={visible}')
    return exit_codes.OK


def _wait_for_cards(
    pick: Callable[[], tuple[list[Card], list[Card]]], count: int, wait_s: float
) -> tuple[list[Card], list[Card]]:
    """The picked cards, fewer than asked for when the wait is over, and all cards."""
    end_s, is_waiting = time.monotonic() + wait_s, False
    while True:
        picked, cards = pick()
        left_s = end_s - time.monotonic()
        if len(picked) == count or left_s <= 0:
            return picked, cards
        if not is_waiting:
            is_waiting = True
            _warn(f'waiting {wait_s:g} s: {describe_shortage(cards, count)}')
        time.sleep(min(_POLL_S, left_s))


def _print_table(cards: Sequence[Card], picked: Sequence[Card]) -> None:
    cards = sorted(cards, key=lambda card: card.index)
    strong = [n for n, card in enumerate(cards) if card in picked]
    rows = [
        (
            card.index,
            card.name,
            format_bytes(card.free_bytes if card.total_bytes else None),
            format_bytes(card.total_bytes or None),
            'unknown' if card.util_pct is None else format_pct(card.util_pct),
            'picked' if n in strong else card.reason or 'free',
        )
        for n, card in enumerate(cards)
    ]
    head = ('GPU', 'name', 'free', 'of', 'busy', '')
    section = Section(table=Table(head, rows, texts=2, strong=strong))
    print_sections([section])


def _become(program: Sequence[str], visible: str) -> None:
    """Put the command in the place of this process, which leaves it the locks."""
    sys.stdout.flush()
    # Python ignores these, and the command would inherit that
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored, signal.SIG_DFL)
    try:
        os.execvpe(program[0], list(program), {**os.environ, VARIABLE: visible})
    except OSError as error:
        raise UserError(
            f'{program[0]} could not be started: {error.strerror}.'
        ) from error
