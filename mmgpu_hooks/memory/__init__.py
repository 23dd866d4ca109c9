"""Estimates the memory that training a config takes, on the CPU."""
