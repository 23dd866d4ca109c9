"""Child processes in which a training has its own run judged."""
