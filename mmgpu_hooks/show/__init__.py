"""Renderers: every one returns a string."""
