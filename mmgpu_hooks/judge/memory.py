"""The card's memory: what there is room for, and what a run's model takes. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from mmgpu_hooks.judge.run import Run

SAFE_SHARE = 0.9
"""Part of the room that is ever planned for: the rest goes to fragments of the
allocator and to batches with more boxes than any that was seen."""

CONTEXT_BYTES = 600 * 2**20
"""A CUDA context at most, where it was not measured what is held beside tensors."""


@dataclass(frozen=True)
class CardRoom:
    """Of the card that a run trained on."""

    total_bytes: int
    beside_bytes: int
    """Held by the context and by other processes."""

    @property
    def room_bytes(self) -> int:
        """Beyond it a training runs out of memory."""
        return max(self.total_bytes - self.beside_bytes, 0)

    @property
    def safe_bytes(self) -> int:
        """Beyond it nothing is recommended."""
        return int(SAFE_SHARE * self.room_bytes)


def fold_card_room(run: Run) -> CardRoom | None:
    """The room that a run's card has; ``None`` when its size is unknown."""
    total = run.run.gpu.memory_total_bytes if run.run.gpu else None
    if not total:
        return None
    used = run.gpu.mem_used_bytes if run.gpu else None
    reserved = run.gpu_mem_reserved_bytes
    beside = CONTEXT_BYTES
    if used is not None and reserved is not None and 0 <= used - reserved <= total:
        beside = used - reserved
    return CardRoom(total, beside)


def fold_static_bytes(run: Run) -> tuple[int | None, int]:
    """Static bytes of a training, and the gradients' part of them.

    Returns:
        ``None`` and what is known of the gradients, where any part was not counted.
    """
    names = ('parameter', 'gradient', 'optimizer_state', 'buffer', 'ema')
    parts = [getattr(run.model, f'{name}_bytes', None) for name in names]
    known = [int(part) for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None, parts[1] or 0
