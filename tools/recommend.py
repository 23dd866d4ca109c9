"""Runs ``mmgpu recommend`` from a checkout: ``tools/recommend.py work_dirs/run1``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mmgpu_hooks.__main__ import main

sys.exit(main(['recommend', *sys.argv[1:]]))
