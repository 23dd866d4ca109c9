"""Upper limits on batch size, workers and prefetching; commands refuse more."""

from __future__ import annotations

MOST_BATCH = 2**16
"""Most images in a batch; a larger number counts as a typing error."""

MOST_WORKERS, MOST_PREFETCH = 512, 1024
"""Most workers, and most batches ahead of each; more counts as a typing error."""
