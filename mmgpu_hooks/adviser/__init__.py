"""Child processes that judge a run for the training that made it."""
