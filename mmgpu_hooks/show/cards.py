"""The cards of the host, as they are at a moment."""

from __future__ import annotations

from collections.abc import Sequence

from mmgpu_hooks.schema import CardState
from mmgpu_hooks.show.document import Section, Table
from mmgpu_hooks.show.figures import format_bytes, format_pct
from mmgpu_hooks.show.terminal import DEFAULT_WIDTH, render


def render_cards(
    cards: Sequence[CardState],
    picked: Sequence[CardState],
    *,
    width: int = DEFAULT_WIDTH,
    color: bool = False,
) -> str:
    """A row for each card and slice: what is free, and whether it may be picked.

    Args:
        cards: All of them.
        picked: Those that are picked.
        width: Columns to wrap at.
        color: Whether the terminal shows colours.
    """
    chosen = {card.label for card in picked}
    rows = []
    for card in cards:
        state = 'picked' if card.label in chosen else card.reason or 'free'
        rows.append((card.label, card.name or 'unknown', *_figures(card), state))
    strong = [n for n, card in enumerate(cards) if card.label in chosen]
    head = ['GPU', 'name', 'free', 'of', 'busy', '']
    table = Table(head, rows, texts=2, strong=strong)
    return render([Section(table=table)], width=width, color=color)


def describe_card(card: CardState) -> str:
    """``GPU 0 (NVIDIA H100, 79.1 GiB of 79.6 GiB free, 0 % busy)``."""
    free, total, busy = _figures(card)
    name = card.name or 'of unknown name'
    return f'GPU {card.label} ({name}, {free} of {total} free, {busy} busy)'


def _figures(card: CardState) -> tuple[str, str, str]:
    busy = 'unknown' if card.util_pct is None else format_pct(card.util_pct)
    return (
        format_bytes(card.memory_free_bytes),
        format_bytes(card.memory_total_bytes),
        busy,
    )
