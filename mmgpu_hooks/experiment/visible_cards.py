"""Which cards the user's environment lets a process see, as CUDA reads it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mmgpu_hooks.schema import CardState

VARIABLE = 'CUDA_VISIBLE_DEVICES'


class CardNameError(Exception):
    """A name that could mean another card than the user thinks of; one sentence."""


def parse_visible(
    environ: Mapping[str, str], cards: Sequence[CardState]
) -> frozenset[str] | None:
    """UUIDs that ``CUDA_VISIBLE_DEVICES`` leaves, slices included.

    As in CUDA, an entry is an index or the beginning of a UUID, and the list ends
    at the first entry that names nothing.

    Args:
        environ: The environment.
        cards: All cards and slices of the host.

    Returns:
        UUIDs of cards and slices, or ``None`` when everything is visible.

    Raises:
        CardNameError: For an index, where CUDA's order of the cards is not the
            driver's, or may not be.
    """
    text = environ.get(VARIABLE)
    if text is None:
        return None
    visible: set[str] = set()
    for entry in (part.strip() for part in text.split(',')):
        if entry.lstrip('-').isdigit():
            found = _by_index(int(entry), text, environ, cards)
        else:
            found = find_by_uuid(entry, cards)
        if found is None:
            break
        visible.add(str(found.uuid))
        if found.slice_index is None:
            # whoever may use a card may use its slices
            visible.update(
                str(card.uuid) for card in cards if card.card_uuid == found.uuid
            )
    return frozenset(visible)


def find_by_uuid(name: str, cards: Sequence[CardState]) -> CardState | None:
    """The one card whose UUID begins like this, in upper or lower case."""
    wanted = name.lower()
    if not wanted.startswith(('gpu-', 'mig-')):
        return None
    found = [card for card in cards if (card.uuid or '').lower().startswith(wanted)]
    return found[0] if len(found) == 1 else None


def find_excluded(names: Sequence[str], cards: Sequence[CardState]) -> frozenset[str]:
    """Labels of the cards named, and of their slices.

    Args:
        names: The driver's indices (as in ``nvidia-smi``), those of slices such as
            ``2:0``, or beginnings of UUIDs.
        cards: All cards and slices of the host.

    Raises:
        CardNameError: If a name means no card, or several.
    """
    labels = {card.label: card for card in cards}
    excluded = set()
    for name in names:
        found = labels.get(name) or find_by_uuid(name, cards)
        if found is None:
            raise CardNameError(
                f'expected the index or UUID of one of {len(cards)} card(s) to '
                f'exclude, found {name!r}; --format table lists them.'
            )
        excluded.add(found.label)
        if found.slice_index is None:
            excluded.update(c.label for c in cards if c.index == found.index)
    return frozenset(excluded)


def _by_index(
    index: int, text: str, environ: Mapping[str, str], cards: Sequence[CardState]
) -> CardState | None:
    # CUDA counts only the cards that the process may open
    open_cards = [card for card in cards if card.uuid and card.slice_index is None]
    names = {card.name for card in open_cards}
    in_pci_order = environ.get('CUDA_DEVICE_ORDER') == 'PCI_BUS_ID'
    is_sliced = any(card.is_sliced for card in open_cards)
    if len(open_cards) > 1 and (is_sliced or (len(names) > 1 and not in_pci_order)):
        why = 'some are sliced (MIG)' if is_sliced else 'they are not all alike'
        instead = '' if is_sliced else ', or CUDA_DEVICE_ORDER=PCI_BUS_ID beside it'
        raise CardNameError(
            f"{VARIABLE}={text} counts cards in CUDA's own order, and {why}, so "
            f'nobody knows which the driver means; expected UUIDs{instead}.'
        )
    return open_cards[index] if 0 <= index < len(open_cards) else None
