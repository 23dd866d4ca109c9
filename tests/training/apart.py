"""Program for torchrun: ranks whose Runner has no launcher train separately."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from training.toy import build_runner


def main(folder: Path) -> None:
    """Trains so that rank 0 has a slow step and rank 1 waits for data."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group('gloo')
    rank = torch.distributed.get_rank()
    seconds: dict[str, Any] = (
        {'item_s': 0.02, 'step_s': 0.005} if rank else {'step_s': 0.2}
    )
    build_runner(folder, iterations=48, log_interval=2, **seconds).train()
    torch.distributed.destroy_process_group()


if __name__ == '__main__':
    main(Path(sys.argv[1]))
