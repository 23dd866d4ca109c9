"""Program of a training whose loader needs a core, to be bound to CPUs."""

from __future__ import annotations

import importlib
import sys
import time

from mmengine.config import Config
from mmengine.runner import Runner
from torch import Tensor

from training.toy import ToyDataset, train


class BusyDataset(ToyDataset):
    """Data set whose images take a given CPU time to load."""

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        end_s = time.thread_time() + self.item_s
        while time.thread_time() < end_s:
            pass
        return ToyDataset.__getitem__(ToyDataset(self.length), index)


def main(config: str, work_dir: str) -> None:
    """Trains a config as MMDetection's ``tools/train.py`` does."""
    # MMEngine lays out the whole config several times, at a second of CPU
    layout = importlib.import_module('mmengine.config.config')
    layout.FormatCode = lambda text, **_: (text, True)  # type: ignore[attr-defined]
    cfg = Config.fromfile(config)
    cfg.work_dir = work_dir
    train(Runner.from_cfg(cfg))


if __name__ == '__main__':
    main(*sys.argv[1:])
