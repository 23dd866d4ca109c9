"""Finds what slows or stops a training, mostly in child processes of the training."""
