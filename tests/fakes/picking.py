"""Program that runs ``mmgpu pick-gpu`` with its lock files in the current folder.

It waits for other starts for half a second alone.
"""

from __future__ import annotations

import sys

PROGRAM = """
import sys
from mmgpu_hooks.experiment import card_locks
from mmgpu_hooks.commands.main import main
card_locks.TEMPORARY = 'locks'
card_locks.PICKING_S = 0.5
sys.exit(main(['pick-gpu', *sys.argv[1:]]))
"""
PICK = [sys.executable, '-c', PROGRAM]
