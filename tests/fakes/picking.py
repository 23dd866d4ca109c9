"""``mmgpu pick-gpu`` as a process of its own, with its locks in the current folder."""

from __future__ import annotations

import sys

PROGRAM = """
import sys
from mmgpu_hooks.experiment import cards
from mmgpu_hooks.commands.main import main
cards.LOCKS = 'locks'
sys.exit(main(['pick-gpu', *sys.argv[1:]]))
"""
PICK = [sys.executable, '-c', PROGRAM]
