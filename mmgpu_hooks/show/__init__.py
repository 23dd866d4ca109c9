"""Renders the answers of commands as terminal text, JSON, CSV or HTML pages."""
