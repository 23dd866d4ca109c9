"""``mmgpu pick-gpu``: finds free GPUs and runs a command on them."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Container, Mapping, Sequence

import click

from mmgpu_hooks.commands import exit_codes, options
from mmgpu_hooks.commands.output import print_sections, warner
from mmgpu_hooks.commands.programs import become
from mmgpu_hooks.experiment.card_locks import lock_cards, read_locks
from mmgpu_hooks.experiment.cards import VARIABLE, Card, judge_cards, read_cards
from mmgpu_hooks.schema.figures import format_bytes, format_pct
from mmgpu_hooks.schema.text import Text, phrase
from mmgpu_hooks.show.document import BLANK, Section, TableColumn, tabulate

_POLL_S = 2.0
"""Seconds between two checks of the GPUs while the command waits for free ones."""
_warn = warner('pick-gpu')


@options.command(
    'pick-gpu',
    'that of the command; without one, 0 enough are free, 1 fewer than asked for',
)
@click.option(
    '-n', '--count', type=options.WholeNumber(min=1), default=1, help='GPUs to pick.'
)
@click.option(
    '--min-free',
    type=options.SIZE,
    metavar='SIZE',
    help='Least free memory, such as 10GiB; by default a tenth of the GPU.',
)
@click.option(
    '--wait',
    type=options.SECONDS,
    metavar='SECONDS',
    help='Wait this long for GPUs to become free; by default not at all.',
)
@click.argument('program', nargs=-1, type=click.UNPROCESSED, metavar='[-- COMMAND...]')
def pick_gpu(
    count: int, min_free: int | None, wait: float | None, program: Sequence[str]
) -> int:
    """Run a command on the GPUs with the most free memory, the least busy ones first.

    It keeps them until it ends: two that are started together do not pick the same
    GPU. Without a command, all GPUs are listed and none is taken.

    \b
    mmgpu pick-gpu
    mmgpu pick-gpu -n 2 -- python tools/train.py CONFIG
    """
    warn_once = functools.cache(_warn)
    # without --wait the first look is the last one
    end_s, is_waiting = time.monotonic() + (wait or 0.0), False
    while True:
        cards = judge_cards(read_cards(), os.environ, min_free)
        picked: Mapping[Card, Sequence[int]] = {}
        if program:
            cards, picked = lock_cards(cards, count, warn_once)
        else:
            cards = read_locks(cards)
            free = [card for card in cards if card.reason is None][:count]
            if len(free) == count:
                picked = dict.fromkeys(free, ())
        left_s = end_s - time.monotonic()
        if picked or left_s <= 0:
            break
        if not is_waiting:
            is_waiting = True
            shortage = _describe_shortage(cards, count)
            _warn(
                phrase(
                    'waiting {wait_s:g} s: {shortage}.', wait_s=wait, shortage=shortage
                )
            )
        time.sleep(min(_POLL_S, left_s))
    if not program:
        _print_table(cards, picked)
    if not picked:
        shortage = _describe_shortage(cards, count)
        _warn(phrase('{shortage}; --wait SECONDS waits for them.', shortage=shortage))
        return exit_codes.NO
    # one without is never picked
    visible = ','.join(card.uuid for card in picked if card.uuid is not None)
    if not program:
        print(f'{VARIABLE}={visible}')
        return exit_codes.OK
    labels = tuple(f'GPU {card.index} ({card.name})' for card in picked)
    _warn(phrase('picked {labels}', labels=labels))
    for locks in picked.values():
        for descriptor in locks:
            os.set_inheritable(descriptor, True)
    return become(program, {**os.environ, VARIABLE: visible})


def _describe_shortage(cards: Sequence[Card], count: int) -> Text:
    reasons = tuple(phrase('{index} {reason}', card) for card in cards if card.reason)
    facts = {
        'found': len(cards) - len(reasons),
        'all': len(cards),
        'why': phrase('{reasons:;}', reasons=reasons) or phrase('no other is there'),
    }
    if count == 1:
        return phrase('expected 1 free GPU, found {found} of {all} ({why})', **facts)
    return phrase(
        'expected {asked} free GPUs, found {found} of {all} ({why})',
        asked=count,
        **facts,
    )


def _print_table(cards: Sequence[Card], picked: Container[Card]) -> None:
    cards = sorted(cards, key=lambda card: card.index)

    def name_state(card: Card) -> str:
        if card in picked:
            return phrase('picked')
        return card.reason or phrase('free')

    columns: Sequence[TableColumn] = (
        TableColumn(phrase('GPU'), 'index', str),
        TableColumn(phrase('name'), '', lambda card: card.name or phrase('unknown')),
        TableColumn(phrase('free'), 'free_bytes', format_bytes),
        TableColumn(phrase('of'), 'total_bytes', format_bytes),
        TableColumn(phrase('busy'), 'util_pct', format_pct),
        TableColumn(BLANK, '', name_state),
    )
    strong = [place for place, card in enumerate(cards) if card in picked]
    table = tabulate(cards, columns, texts=2, strong=strong)
    print_sections([Section(table=table)])
