"""The memory that training a config takes, counted on the CPU."""
