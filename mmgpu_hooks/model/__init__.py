"""Predicts a training's duration under other loader settings from measured times."""
