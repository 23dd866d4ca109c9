"""Recommends setting changes from findings, predictions and host limits. Pure."""
