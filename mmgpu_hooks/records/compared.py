"""Two runs or two settings, set against each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple


@dataclass(frozen=True)
class Estimate:
    """A figure that was measured, and where the truth is expected."""

    value: float
    low: float
    """The truth is expected between low and high 95 times in 100."""
    high: float
    count: int
    """What it is taken over: pairs of blocks, intervals."""

    @property
    def half_width(self) -> float:
        """Half of the interval."""
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class FigureComparison:
    """One figure of both runs; a change is unknown when either side is."""

    name: str
    """With its unit: ``iter_s``, ``images_per_s``, or a part of the time ledger as
    ``data_wait_s``; seconds are per iteration."""
    before: Optional[Estimate]
    after: Optional[Estimate]
    difference: Optional[Estimate]
    """``after - before``."""
    ratio: Optional[Estimate]
    """``after / before``; ``None`` where ``before`` may be zero."""


@dataclass(frozen=True)
class SettingComparison:
    """Something of the runs themselves that is not the same in both."""

    name: str
    """Dotted: ``loader.num_workers``, ``host.usable_cores``, ``versions.torch``."""
    before: Optional[str]
    """As text; ``None`` is unknown or absent."""
    after: Optional[str]


@dataclass(frozen=True)
class RunComparison:
    """What differs between two runs, and how sure that is."""

    figures: Tuple[FigureComparison, ...]
    """The iteration first, images per second, then the parts of the ledger."""
    settings: Tuple[SettingComparison, ...] = ()
    obstacles: Tuple[str, ...] = ()
    """Why the speeds cannot be set against each other: sentences. Empty when they
    can."""
    notes: Tuple[str, ...] = ()

    @property
    def iter_ratio(self) -> Optional[Estimate]:
        """Iteration time of the second run over that of the first."""
        return self.figures[0].ratio if self.figures else None


@dataclass(frozen=True)
class Verification:
    """Two settings that were trained in alternating blocks."""

    gain: Estimate
    """How much faster the second is, in images per second: 0.3 is 30 %."""
    before_s: float
    """Mean iteration with the first setting, first ones of epochs left out."""
    after_s: float
    before_start_s: Optional[float] = None
    """What the first iteration of an epoch takes longer; ``None`` when none was
    seen."""
    after_start_s: Optional[float] = None
    pairs: int = 0
    iterations: int = 0
    """Measured iterations of each, warm-up left out."""
    seconds: float = 0.0
    """Of the whole verification."""
    ending: str = ''
    """Why it ended: a sentence."""
    external_cpu_cores: Optional[float] = None
    """Cores of the host that others used meanwhile; ``None`` is unknown."""
    predicted_gain: Optional[float] = None
    """What was predicted of the gain; ``None`` without a prediction."""
    notes: Tuple[str, ...] = ()
