"""What tests do with a ledger that they drive by hand."""

from __future__ import annotations

from mmgpu_hooks.evidence.ledger import TimeLedger


def failed(*problem: object) -> None:
    raise AssertionError(problem)


def nonzero(ledger: TimeLedger) -> dict[str, float]:
    return {part: s for part, s in ledger.read().wall_s.items() if s}


def go_on(ledger: TimeLedger, part: str) -> None:
    """The plain loop goes on with a part, as it does after a hook point."""
    ledger.begin_hooks()
    ledger.end_hooks(part)
