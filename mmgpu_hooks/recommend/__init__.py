"""Recommends setting changes from findings, predictions and host limits; no I/O."""
