"""Optimisations that save CPU time in training, one per module, imported on demand."""
