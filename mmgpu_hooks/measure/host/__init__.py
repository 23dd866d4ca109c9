"""The host: what it allows, and what it did to everybody on it."""
