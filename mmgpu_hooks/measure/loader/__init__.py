"""Measures the train DataLoader: its settings, workers, batches and waits."""
