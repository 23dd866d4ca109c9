"""Program that trains one config on the CPU as MMDetection's ``tools/train.py`` does.

    python -m benchmarks.whole_training CONFIG FOLDER SETTINGS

``SETTINGS`` is JSON, of dotted keys. In the run's folder it leaves how long that took
without the imports, which take the same with every setting.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from mmengine.config import Config
from mmengine.runner import Runner

SECONDS = 'seconds.txt'


def main() -> None:
    """Trains a config and writes the duration of the training to a file."""
    path, folder, settings = sys.argv[1:]
    config = Config.fromfile(path)
    config.merge_from_dict(json.loads(settings))
    config.work_dir = folder
    if config.get('default_scope') == 'mmdet':
        from mmdet.utils import register_all_modules

        register_all_modules(init_default_scope=False)
    began_s = time.perf_counter()
    Runner.from_cfg(config).train()
    seconds = time.perf_counter() - began_s
    Path(folder, SECONDS).write_text(str(seconds))


if __name__ == '__main__':
    main()
