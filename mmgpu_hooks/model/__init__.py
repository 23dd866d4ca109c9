"""Predicts a training's times with other loader settings from measurements; no I/O."""
