"""Rules: evidence in, findings out."""
