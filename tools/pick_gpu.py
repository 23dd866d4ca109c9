"""Runs ``mmgpu pick-gpu`` from a checkout: ``tools/pick_gpu.py -n 2 -- COMMAND``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mmgpu_hooks.__main__ import main

sys.exit(main(['pick-gpu', *sys.argv[1:]]))
