"""Stand-ins at the real borders of the package."""
