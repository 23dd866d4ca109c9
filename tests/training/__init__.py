"""Small real trainings for tests, with toy models and MMDetection."""
