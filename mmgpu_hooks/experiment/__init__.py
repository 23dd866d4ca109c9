"""Training trials run for comparison, and the data set of the demo."""
