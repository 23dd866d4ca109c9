"""Judges what a run recorded."""
