"""Optimisations that make a training cheaper, one module each, imported on demand."""
