"""Real trainings, small enough for a test: toys and MMDetection itself."""
