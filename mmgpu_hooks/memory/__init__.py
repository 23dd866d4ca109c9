"""Estimates the GPU memory of training a config by running its model on the CPU."""
