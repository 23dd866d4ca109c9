"""Trainings run as experiments (sweep, verify, profile), and the demo's data set."""
