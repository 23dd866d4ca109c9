"""Benchmarks of the package's claims; run one by ``python -m benchmarks.<name>``."""
