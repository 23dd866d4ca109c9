"""``mmgpu pick-gpu``: which card is free, for people, scripts and commands."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mmgpu_hooks.commands import exit_codes
from mmgpu_hooks.commands.terminal import terminal_layout

if TYPE_CHECKING:
    from mmgpu_hooks.experiment.cards import Card

NAME = 'pick-gpu'
HELP = 'pick the free cards of this host'
DESCRIPTION = """\
Pick the cards with the most free memory, the least busy ones first, and run a command
on them, or print CUDA_VISIBLE_DEVICES=... for a script. Two that are started together
do not pick the same card."""
EPILOG = """\
examples:
  mmgpu pick-gpu                                    a table of all cards
  mmgpu pick-gpu -n 2 -- python tools/train.py CONFIG
  cards=$(mmgpu pick-gpu --min-free 20GiB) && env $cards python tools/train.py CONFIG

exit codes: that of the command; without one, 0 picked, 1 fewer cards are free than
asked for, 2 input that cannot be used, no driver or no NVML (one sentence on standard
error says why)"""

_LOOK_S = 2.0
"""Seconds between two looks while waiting."""

_UNITS = {'k': 2**10, 'm': 2**20, 'g': 2**30, 't': 2**40}
_SIZE = re.compile(r'(\d{1,12}(?:\.\d{1,12})?)\s*([kmgt])(i?b)?', re.IGNORECASE)
_SHARE = re.compile(r'(\d+(?:\.\d+)?)\s*%')


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument(
        '-n', '--count', type=_count, default=1, help='cards to pick (default: 1)'
    )
    parser.add_argument(
        '--min-free',
        type=parse_least_free,
        default='10%',
        metavar='SIZE',
        help='least free memory, such as 10GiB or 50%% (default: 10%%)',
    )
    parser.add_argument(
        '--exclude',
        nargs='+',
        default=[],
        metavar='GPU',
        help='cards to leave alone: indices as in nvidia-smi, or beginnings of UUIDs',
    )
    parser.add_argument(
        '--wait',
        type=_seconds,
        default=0.0,
        metavar='SECONDS',
        help='wait so long for cards to become free (default: 0)',
    )
    parser.add_argument(
        '--format',
        choices=('table', 'env'),
        help='table: look and take nothing; env: CUDA_VISIBLE_DEVICES=... (default: '
        'table on a terminal, else env)',
    )
    parser.add_argument(
        '--reserve',
        type=_seconds,
        default=60.0,
        metavar='SECONDS',
        help='with env: how long others are kept off, for the script to start '
        '(default: 60)',
    )
    parser.add_argument(
        '--leases',
        type=_folder,
        metavar='DIR',
        help='folder of the lock files (default: /tmp/mmgpu-UID, of this user)',
    )
    parser.add_argument(
        'run_command',
        nargs='*',
        metavar='-- COMMAND',
        help='run it with CUDA_VISIBLE_DEVICES set; it keeps the cards until it ends',
    )


def run(arguments: argparse.Namespace) -> int:
    """Pick, then print or become the command."""
    from mmgpu_hooks.schema.errors import UserError

    try:
        return _pick(arguments)
    except UserError as error:
        _say(str(error))
        return exit_codes.BAD_INPUT


def _pick(arguments: argparse.Namespace) -> int:
    # late: file locks exist on POSIX alone, and other commands run elsewhere too
    from mmgpu_hooks.experiment.cards import (
        CardLocks,
        describe_shortage,
        judge_cards,
        read_cards,
    )
    from mmgpu_hooks.schema.errors import UserError

    command, count = arguments.run_command, arguments.count
    if command and shutil.which(command[0]) is None:
        raise UserError(f'expected a command to run, found no {command[0]!r} on PATH.')
    form = arguments.format or ('table' if sys.stdout.isatty() else 'env')
    names = [name for text in arguments.exclude for name in text.split(',') if name]
    least_bytes, least_pct = arguments.min_free
    locks = CardLocks(arguments.leases)
    end_s, is_waiting = time.monotonic() + arguments.wait, False
    while True:
        cards = judge_cards(
            read_cards(),
            os.environ,
            min_free_bytes=least_bytes,
            min_free_pct=least_pct,
            exclude=names,
        )
        try:
            picked, cards = locks.pick(cards, count)
        except UserError:
            if form != 'table' or command:
                raise
            # a table takes nothing: it shows what the driver says
            picked = [card for card in cards if card.reason is None][:count]
        left_s = end_s - time.monotonic()
        if len(picked) == count or left_s <= 0:
            break
        if not is_waiting:
            is_waiting = True
            _say(f'waiting {arguments.wait:g} s: {describe_shortage(cards, count)}')
        time.sleep(min(_LOOK_S, left_s))
    if form == 'table' and not command:
        _print_table(cards, picked)
    if len(picked) < count:
        _say(f'{describe_shortage(cards, count)}; --wait SECONDS waits for them.')
        return exit_codes.NO_FREE_CARD
    visible = ','.join(card.uuid for card in picked)
    if command:
        labels = ', '.join(f'GPU {card.index} ({card.name})' for card in picked)
        _say(f'picked {labels}')
        locks.pass_on()
        return _become(command, visible)
    if form == 'env':
        locks.reserve(arguments.reserve)
    print(f'CUDA_VISIBLE_DEVICES={visible}')
    return exit_codes.OK


def _print_table(cards: Sequence[Card], picked: Sequence[Card]) -> None:
    from mmgpu_hooks.show.document import Section, Table
    from mmgpu_hooks.show.figures import format_bytes, format_pct
    from mmgpu_hooks.show.terminal import render

    cards = sorted(cards, key=lambda card: card.index)
    chosen = {card.index for card in picked}
    rows = [
        (
            card.index,
            card.name,
            format_bytes(card.free_bytes) if card.total_bytes else 'unknown',
            format_bytes(card.total_bytes) if card.total_bytes else 'unknown',
            'unknown' if card.util_pct is None else format_pct(card.util_pct),
            'picked' if card.index in chosen else card.reason or 'free',
        )
        for card in cards
    ]
    strong = [row for row, card in enumerate(cards) if card.index in chosen]
    head = ('GPU', 'name', 'free', 'of', 'busy', '')
    section = Section(table=Table(head, rows, texts=2, strong=strong))
    print(render([section], **terminal_layout(sys.stdout)))


def _become(command: Sequence[str], visible: str) -> int:
    """Put the command in the place of this process, which leaves it the locks."""
    sys.stdout.flush()
    # Python ignores these, and the command would inherit that
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored, signal.SIG_DFL)
    try:
        environ = {**os.environ, 'CUDA_VISIBLE_DEVICES': visible}
        os.execvpe(command[0], list(command), environ)
    except OSError as error:
        _say(f'{command[0]} could not be started: {error.strerror}.')
        return exit_codes.BAD_INPUT


def parse_least_free(text: str) -> tuple[int, float]:
    """Bytes and per cent out of ``10GiB`` or ``50%``.

    Raises:
        argparse.ArgumentTypeError: If it is neither.
    """
    size, share = _SIZE.fullmatch(text.strip()), _SHARE.fullmatch(text.strip())
    if size is not None:
        number, unit, kind = size.groups()
        # GB is decimal, as NVIDIA's data sheets have it; G and GiB are not
        base = _UNITS[unit.lower()]
        if kind is not None and kind.lower() == 'b':
            base = 1000 ** (list(_UNITS).index(unit.lower()) + 1)
        return int(float(number) * base), 0.0
    if share is not None and float(share[1]) <= 100:
        return 0, float(share[1])
    raise argparse.ArgumentTypeError(
        f'expected a size with its unit such as 10GiB, or a share such as 50%, found '
        f'{text!r}'
    )


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f'expected 1 or more cards, found {text!r}')
    return int(text)


def _folder(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError('expected a folder, found an empty name')
    return Path(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float('inf'):
        raise argparse.ArgumentTypeError(f'expected seconds, 0 or more, found {text!r}')
    return seconds


def _say(text: str) -> None:
    print(f'mmgpu {NAME}: {text}', file=sys.stderr, flush=True)
