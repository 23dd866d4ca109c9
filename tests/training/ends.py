"""A training that ends as it is told: ``python -m training.ends KIND FOLDER``."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from training.toy import ToyDataset, build_runner

AT = 13
"""The sample that ends it."""


class EndingDataset(ToyDataset):
    """Raises, or kills whatever process loads sample `AT`.

    Args:
        kind: ``raise``, ``kill_worker``, ``crash_worker`` or ``wait``.
    """

    def __init__(self, kind: str) -> None:
        super().__init__(48)
        self.kind = kind

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == AT:
            if self.kind.startswith('raise'):
                raise FileNotFoundError(2, 'No such file', f'data/{index:06d}.jpg')
            if self.kind == 'kill_worker':
                os.kill(os.getpid(), signal.SIGKILL)
            if self.kind == 'crash_worker':
                os.kill(os.getpid(), signal.SIGSEGV)
            time.sleep(60)
        return super().__getitem__(index)


if __name__ == '__main__':
    kind, folder = sys.argv[1:]
    workers = 0 if kind in ('raise_without_workers', 'wait') else 2
    runner = build_runner(
        Path(folder), iterations=24, log_interval=2, num_workers=workers
    )
    runner._train_dataloader['dataset'] = EndingDataset(kind)
    runner._train_dataloader['sampler']['shuffle'] = False
    runner.train()
