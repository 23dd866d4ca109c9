"""Child processes that a training starts to have itself judged."""
