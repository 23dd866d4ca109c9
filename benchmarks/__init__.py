"""Benchmarks of our claims: ``python -m benchmarks.<name>`` from the root runs one."""
