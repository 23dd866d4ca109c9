"""What a run's model and optimizer were counted to take. Pure."""

from __future__ import annotations

from mmgpu_hooks.judge.run import Run


def fold_static_bytes(run: Run) -> tuple[int | None, int]:
    """Static bytes of a training, and the gradients' part of them.

    Returns:
        ``None`` and what is known of the gradients, where any part was not counted.
    """
    counted = run.model
    if counted is None:
        return None, 0
    parts = (
        counted.parameter_bytes,
        counted.gradient_bytes,
        counted.optimizer_state_bytes,
        counted.buffer_bytes,
        counted.ema_bytes,
    )
    known = [part for part in parts if part is not None]
    static = sum(known) if len(known) == len(parts) else None
    return static, counted.gradient_bytes or 0
