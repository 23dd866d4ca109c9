"""Runs ``mmgpu demo`` from a checkout; called by ``make demo``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mmgpu_hooks.__main__ import main

sys.exit(main(['demo', *sys.argv[1:]]))
