"""Measures what we claim: run one as ``python -m benchmarks.<name>`` from the root."""
