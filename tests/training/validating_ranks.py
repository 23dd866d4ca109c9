"""Program for torchrun: validates with a late rank 1 and a metric on rank 0."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from training.ranks import build_rank
from training.toy import ToyDataset, ToyMetric

LATE_S, METRIC_S, BATCHES = 0.6, 0.9, 6


class LateMetric(ToyMetric):
    """Metric for which rank 1 takes longer in its last batch."""

    def process(self, data_batch: Any, data_samples: Any) -> None:
        super().process(data_batch, data_samples)
        is_last = len(self.results) == BATCHES
        time.sleep(LATE_S * (is_last and torch.distributed.get_rank() == 1))


def main(folder: Path) -> None:
    """Trains one epoch and validates."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group('gloo')
    os.chdir(folder)
    build_rank(
        folder,
        val_dataloader={
            'dataset': ToyDataset(2 * BATCHES),
            'sampler': {'type': 'DefaultSampler', 'shuffle': False},
            'batch_size': 1,
            'num_workers': 0,
        },
        val_cfg={},
        val_evaluator={'type': LateMetric, 'evaluation_s': METRIC_S},
    ).train()
    torch.distributed.destroy_process_group()


if __name__ == '__main__':
    main(Path(sys.argv[1]))
