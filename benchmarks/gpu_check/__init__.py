"""Checks for a CUDA machine: our figures against independent ones."""
