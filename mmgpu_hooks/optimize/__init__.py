"""Optimisations that make a training cheaper, each a module imported on demand."""
