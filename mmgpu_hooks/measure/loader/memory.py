"""When the workers' memory is looked at, and what was found."""

from __future__ import annotations

from mmgpu_hooks.measure.clock import Clock
from mmgpu_hooks.measure.loader.processes import WorkerProcesses

_PERIOD_S = 30.0


class MemoryLook:
    """Looks once per start of workers and every 30 seconds.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: WorkerProcesses | None = None
        self._seen_s = 0.0
        self._sizes: tuple[int | None, ...] = ()

    def is_due(self, workers: WorkerProcesses | None) -> bool:
        """Whether :meth:`look` would look.

        Args:
            workers: Those that live; ``None`` when none do.
        """
        is_seen = workers is self._seen
        if is_seen and self._clock() - self._seen_s < _PERIOD_S:
            return False
        return workers is not None

    def look(self, workers: WorkerProcesses) -> None:
        """Look at their memory; 20 ms at most, on any thread."""
        self._seen, self._seen_s = workers, self._clock()
        self._sizes = workers.read_pss_bytes()

    def drain(self) -> int | None:
        """What was found since the last call.

        Returns:
            Bytes of all workers, where only some were looked at the others taken to be
            like them; ``None`` when none shows them.
        """
        sizes, self._sizes = self._sizes, ()
        known = tuple(size for size in sizes if size is not None)
        if not known:
            return None
        return sum(known) * len(sizes) // len(known)

    def close(self) -> None:
        """Let the workers go."""
        self._seen = None
