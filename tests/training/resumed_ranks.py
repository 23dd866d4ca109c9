"""Program for torchrun: two ranks train completely, and resume in the middle.

Each rank leaves what it trained on in ``seen_RANK.json`` of the folder.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from mmengine.hooks import Hook

from training.ranks import build_rank
from training.toy import HOOK

AT, UNTIL = 33, 60


class Resumed(Hook):
    """Hook that starts training at an iteration, and records the batches."""

    def __init__(self, iteration: int) -> None:
        self.iteration = iteration
        self.seen: list[list[int]] = []

    def before_run(self, runner: Any) -> None:
        runner.train_loop._iter = self.iteration

    def before_train_iter(self, runner: Any, batch_idx: int, data_batch: Any) -> None:
        self.seen.append([int(index) for index in data_batch['data_samples']])


def main(folder: Path) -> None:
    """Runs the complete and the resumed training on this rank."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group('gloo')
    rank = torch.distributed.get_rank()
    found: dict[str, Any] = {}
    for workers in (0, 2):
        for at in (0, AT):
            resumed = Resumed(at)
            runner = build_rank(
                folder / f'{workers}_{at}',
                loop='iter',
                iterations=UNTIL,
                length=400,
                num_workers=workers,
                hook={**HOOK, 'optimize': 'resume', 'summary': False},
                custom_hooks=[resumed],
            )
            runner._train_dataloader['sampler'] = {'type': 'InfiniteSampler'}
            runner.train()
            found[f'{workers} workers from {at}'] = resumed.seen
            live = runner.train_loop.dataloader_iterator._iterator
            if workers:
                live._shutdown_workers()
    (folder / f'seen_{rank}.json').write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


if __name__ == '__main__':
    main(Path(sys.argv[1]))
