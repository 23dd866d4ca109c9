"""Trains configs for experiments (sweep, verify, profile); makes the demo's data."""
