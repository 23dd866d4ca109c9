"""What several saves lost in all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mmgpu_hooks.schema import SaveJudgement, SaveRecord


@dataclass(frozen=True)
class SaveDelay:
    """The delays of some saves, added up."""

    count: int
    of: int
    """Saves of the run."""
    gross_s: float
    net_s: float | None
    """Of those whose net delay is known; ``None`` without one."""
    net_known: int
    worst: str
    """The paragraph about the one with the largest delay."""

    def sentence(self, why: str) -> str:
        """Count, gross and net."""
        text = (
            f'{self.count} of {self.of} saves took {self.gross_s:.1f} s longer in all '
            f'{why} (gross)'
        )
        if self.net_s is None:
            return f'{text}; what the job lost (net) is not known.'
        partly = ''
        if self.net_known < self.count:
            partly = f', of the {self.net_known} whose iterations after it are known'
        return f'{text}; the job lost {self.net_s:.1f} s (net{partly}).'


def fold_delay(
    saves: Sequence[tuple[SaveRecord, SaveJudgement]], count: int
) -> SaveDelay:
    """Add up the delays of saves that were judged slow.

    Args:
        saves: At least one, with its judgement.
        count: Saves of the run.
    """
    judged = [judgement for _, judgement in saves]
    nets = [j.net_delay_s for j in judged if j.net_delay_s is not None]
    worst = max(judged, key=lambda j: j.gross_delay_s or 0.0)
    return SaveDelay(
        count=len(judged),
        of=count,
        gross_s=sum(j.gross_delay_s or 0.0 for j in judged),
        net_s=sum(nets) if nets else None,
        net_known=len(nets),
        worst=worst.sentence,
    )
