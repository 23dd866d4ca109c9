"""Model that uses as much GPU memory as a test requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from training.toy import ToyModel


class HungryModel(ToyModel):
    """Model of one convolution with buffers of requested sizes.

    Args:
        step_s: Seconds that a training step sleeps.
        held_mib: Held from the first training step on.
        steps_mib: Taken for the time of a step, by its 1-based number.
        leak_mib: Kept of each step.
    """

    def __init__(
        self,
        step_s: float = 0.0,
        held_mib: int = 0,
        steps_mib: Mapping[str, int] | None = None,
        leak_mib: int = 0,
    ) -> None:
        super().__init__(step_s)
        self.held_mib = held_mib
        self.steps_mib = steps_mib or {}
        self.leak_mib = leak_mib
        self.held: Any = None
        self.kept: list[Any] = []
        self.steps = 0

    def forward(
        self, inputs: Any, data_samples: Any = None, mode: str = 'tensor'
    ) -> Any:
        self.steps += 1
        if self.held is None:
            self.held = torch.zeros(self.held_mib * 2**18, device='cuda')
        self.kept.append(torch.zeros(self.leak_mib * 2**18, device='cuda'))
        taken = torch.zeros(
            self.steps_mib.get(str(self.steps), 0) * 2**18, device='cuda'
        )
        losses = super().forward(inputs, data_samples, mode)
        del taken
        return losses
