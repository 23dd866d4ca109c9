"""Judges what training runs recorded: verdicts, findings, causes, forecasts."""
