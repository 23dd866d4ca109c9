"""Program of a training whose first validation hangs in its metric."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from training.toy import ToyMetric, build_runner, validation


class StandsFor(ToyMetric):
    """Metric that hangs in one of its methods.

    Args:
        method: Its name.
    """

    def __init__(self, method: str) -> None:
        super().__init__()
        self._method = method

    def process(self, data_batch: Any, data_samples: Any) -> None:
        time.sleep(600 * (self._method == 'process'))
        super().process(data_batch, data_samples)

    def compute_metrics(self, results: list[Any]) -> dict[str, float]:
        time.sleep(600 * (self._method == 'compute_metrics'))
        return {'score': 1.0}


if __name__ == '__main__':
    evaluator = {'val_evaluator': {'type': StandsFor, 'method': sys.argv[2]}}
    build_runner(Path(sys.argv[1]), **{**validation(0.0), **evaluator}).train()
