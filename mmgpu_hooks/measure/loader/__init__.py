"""The train loader: its settings, its workers from inside and outside, its queue."""
