"""Runs ``mmgpu estimate-memory`` from a checkout (``tools/estimate_memory.py``)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mmgpu_hooks.__main__ import main

sys.exit(main(['estimate-memory', *sys.argv[1:]]))
