"""Program for torchrun: data-parallel training with costly or slow loading."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed

from training.bound import BusyDataset
from training.ranks import DATA_PARALLEL
from training.toy import ToyDataset, build_runner


def main(folder: Path, kind: str) -> None:
    """Trains; loading is ``cheap``, needs CPU (``busy``) or waits (``stored``)."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group('gloo')
    item_s = {'cheap': 0.0, 'busy': 0.004, 'stored': 0.03}[kind]
    build_runner(
        folder,
        dataset=(BusyDataset if kind == 'busy' else ToyDataset)(960, item_s),
        num_workers=1,
        step_s=0.02,
        log_interval=20,
        launcher='pytorch',
        env_cfg={'dist_cfg': {'backend': 'gloo'}},
        cfg={'model_wrapper_cfg': {'type': DATA_PARALLEL, 'device_ids': None}},
    ).train()
    torch.distributed.destroy_process_group()


if __name__ == '__main__':
    main(Path(sys.argv[1]), sys.argv[2])
