"""The parts of the time ledger."""

from __future__ import annotations

PARTS = (
    'data_wait',
    'step',
    'hooks',
    'checkpoint_save',
    'validation',
    'startup',
    'resume',
    'teardown',
    'loop',
    'other',
)
"""Every second of training is in exactly one of these."""

PART_NAMES = {part: part.replace('_', ' ') for part in PARTS} | {
    'checkpoint_save': 'saves',
    'startup': 'start-up',
}

UNATTRIBUTED = '(unattributed)'
"""Stands for a hook's name where a Runner calls its hooks in a way of its own."""
