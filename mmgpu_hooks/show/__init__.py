"""Renderers of answers: sections, text, JSON, CSV and pages, returned as values."""
