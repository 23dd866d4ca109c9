"""Puts a calibrated load of matrix products on the GPU for a known time."""

from __future__ import annotations

import time
from typing import Any

import torch

AHEAD_S = 0.02
"""Seconds of matrix products that are queued on the GPU in advance."""


class Matmuls:
    """Matrix products on the GPU, with their duration calibrated at construction.

    Args:
        size: Rows and columns of the square matrices.
    """

    def __init__(self, size: int = 2048) -> None:
        self._a = torch.randn(size, size, device='cuda')
        self._out = torch.empty_like(self._a)
        for _ in range(20):  # clocks rise, cuBLAS picks its kernel
            self._multiply()
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(50):
            self._multiply()
        end.record()
        end.synchronize()
        self._one_s = begin.elapsed_time(end) / 50 / 1e3

    def _multiply(self) -> None:
        torch.mm(self._a, self._a, out=self._out)

    def keep_busy(self, seconds: float) -> None:
        """Keeps the GPU busy for ``seconds`` without a gap."""
        ahead: Any = None
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            for _ in range(max(1, round(AHEAD_S / self._one_s))):
                self._multiply()
            event = torch.cuda.Event()
            event.record()
            if ahead is not None:
                ahead.synchronize()
            ahead = event
        torch.cuda.synchronize()
