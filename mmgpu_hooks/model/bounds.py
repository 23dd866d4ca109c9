"""Upper limits on batch size, workers and prefetching; commands refuse more."""

from __future__ import annotations

MOST_BATCH = 2**16
"""Maximum number of images in a batch; a larger one counts as a typing error."""

MOST_WORKERS, MOST_PREFETCH = 512, 1024
"""Maximum number of workers, and of batches prefetched per worker, that is accepted."""
