"""Finds what slows or stops a training; child processes of it do most of this work."""
