"""A ledger whose clock is turned by hand."""

from __future__ import annotations

import pytest

from fakes.clock import HandClock
from mmgpu_hooks.evidence.ledger import TimeLedger


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def ledger(clock: HandClock) -> TimeLedger:
    return TimeLedger(clock, HandClock(0.0))
