"""Fakes for the package's real interfaces: GPU driver, clock, processes, runs."""
