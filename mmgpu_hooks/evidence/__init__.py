"""Samples folded into one record per interval, written out and read back."""
