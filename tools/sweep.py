"""Runs ``mmgpu sweep`` from a checkout: ``python tools/sweep.py CONFIG``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mmgpu_hooks.__main__ import main

sys.exit(main(['sweep', *sys.argv[1:]]))
