"""Program of a training whose first validation is killed in its metric."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from training.toy import ToyDataset, ToyMetric, build_runner, validation

BATCHES, SHORT_S = 20, 0.1
MARKER = 'stands'
"""Name of the file that marks the begin of the metric call that will be killed."""


class StandsFor(ToyMetric):
    """Metric that is slow for each batch, and hangs in one of its methods.

    Args:
        folder: Of the run.
        method: The method's name; ``short process`` goes on.
    """

    def __init__(self, folder: str, method: str) -> None:
        super().__init__()
        self._marker, self._method = Path(folder, MARKER), method

    def _stand(self, method: str) -> None:
        if method == self._method:
            self._marker.touch()
            time.sleep(600)

    def process(self, data_batch: Any, data_samples: Any) -> None:
        if self._method == 'short process':
            self._marker.touch()
        if len(self.results) == BATCHES - 1:
            self._stand('process')
        time.sleep(SHORT_S)
        super().process(data_batch, data_samples)

    def compute_metrics(self, results: list[Any]) -> dict[str, float]:
        self._stand('compute_metrics')
        return {'score': 1.0}


if __name__ == '__main__':
    folder, method = sys.argv[1:]
    arguments = validation(0.0)
    batches = BATCHES * (30 if method == 'short process' else 1)
    arguments['val_dataloader'].update(dataset=ToyDataset(batches), batch_size=1)
    evaluator = {'type': StandsFor, 'folder': folder, 'method': method}
    build_runner(Path(folder), **{**arguments, 'val_evaluator': evaluator}).train()
