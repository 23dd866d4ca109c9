"""Trainings run as experiments, and the data set of the demo."""
