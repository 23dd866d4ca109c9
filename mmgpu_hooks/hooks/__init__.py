"""Thin adapters between an MMEngine runner and the rest of the package."""
