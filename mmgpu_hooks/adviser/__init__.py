"""Judges a training in child processes that this training starts."""
