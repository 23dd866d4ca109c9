"""Program of a training whose data set parses a file slowly.

Arguments: the work_dir, the annotation file or the folder of images in its place, and
the seconds that parsing takes.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS

from training.toy import ToyDataset, build_runner, train


@DATASETS.register_module()
class SlowlyParsed(BaseDataset):
    """Data set that parses its annotation file slowly.

    Args:
        parse_s: Seconds that parsing takes.
    """

    def __init__(self, parse_s: float, **given: Any) -> None:
        self.parse_s = parse_s
        super().__init__(**given)

    def load_data_list(self) -> list[dict[str, Any]]:
        count = 64
        if self.ann_file:
            with open(self.ann_file) as file:
                count = len(file.read())
        time.sleep(self.parse_s)
        return [{'img_id': number} for number in range(min(count, 64))]

    def __getitem__(self, index: int) -> Any:
        return ToyDataset(64)[index]


def main(work_dir: str, ann_file: str, parse_s: str) -> None:
    """Trains for four iterations."""
    is_folder = Path(ann_file).is_dir()
    dataset = {
        'type': 'SlowlyParsed',
        'ann_file': '' if is_folder else ann_file,
        'data_prefix': {'img_path': ann_file if is_folder else ''},
        'parse_s': float(parse_s),
        'pipeline': [],
    }
    # a hook that takes its time as well
    train(build_runner(Path(work_dir), dataset=dataset, iterations=4, loop='iter'))


if __name__ == '__main__':
    main(*sys.argv[1:])
