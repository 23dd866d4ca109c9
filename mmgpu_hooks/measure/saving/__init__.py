"""What a checkpoint save costs the thread that makes it, and what goes on beside it."""
