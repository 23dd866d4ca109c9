"""Largest settings that anything is computed for; options of commands refuse more."""

from __future__ import annotations

MOST_BATCH = 2**16
"""Most images in a batch; a larger one is a slip of a hand."""

MOST_WORKERS, MOST_PREFETCH = 512, 1024
"""Largest settings that are no slip of the finger."""
