"""Measures the train DataLoader: settings, workers from inside and outside, queue."""
