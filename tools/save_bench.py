"""Runs ``mmgpu save-bench`` from a checkout: ``tools/save_bench.py CONFIG ...``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mmgpu_hooks.__main__ import main

sys.exit(main(['save-bench', *sys.argv[1:]]))
