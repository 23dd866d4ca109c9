"""The cards of the host, as they are at a moment."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from mmgpu_hooks.schema import CardState
from mmgpu_hooks.show.console import DEFAULT_WIDTH, render
from mmgpu_hooks.show.figures import bind_figures, format_bytes, format_pct


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
    table = Table(box=None, pad_edge=False, header_style='bold')
    table.add_column('GPU', no_wrap=True)
    table.add_column('name')
    for name in ('free', 'of', 'busy'):
        table.add_column(name, justify='right', no_wrap=True)
    table.add_column('')
    chosen = {card.label for card in picked}
    for card in cards:
        is_chosen = card.label in chosen
        state = 'picked' if is_chosen else card.reason or 'free'
        cells = (card.label, card.name or 'unknown', *_figures(card), state)
        # texts, because a name from the driver is no markup
        table.add_row(
            *(Text(bind_figures(cell)) for cell in cells),
            style='bold' if is_chosen else None,
        )
    return render(table, width=width, color=color)


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
