"""A child process that judges a run for the training that made it."""
