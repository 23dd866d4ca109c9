"""One save while it lasts: which phase it is in, what it writes and holds."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from mmgpu_hooks.measure.saving.contents import (
    count_history_bytes,
    count_tensor_bytes,
    read_size_bytes,
)
from mmgpu_hooks.measure.saving.phases import PhaseClock, ThreadClock
from mmgpu_hooks.measure.saving.surroundings import Surroundings
from mmgpu_hooks.schema import SavePhase

_LOCAL = ('LocalBackend', 'HardDiskBackend')
"""Backends of MMEngine that write to a file system of this host."""


class SaveProgress:
    """Listens to the stamps of one save.

    Args:
        clock: Of the thread that saves.
        surroundings: Looks at memory where most of it is held.
    """

    def __init__(self, clock: ThreadClock, surroundings: Surroundings) -> None:
        self._surroundings = surroundings
        self._is_copied = False
        self._checkpoint: Mapping[str, Any] | None = None
        self._written_bytes: int | None = None
        self._backend: str | None = None
        self.written_path: str | None = None
        """What the backend was given."""
        self.total = SavePhase(wall_s=0.0)
        """What was spent in all, once it is over."""
        self.phases: Mapping[str, SavePhase] = {}
        """What was spent in each phase."""
        self._clock = PhaseClock(clock)

    @property
    def is_seen(self) -> bool:
        """Whether any stamp came: this process copied or wrote something."""
        return self._is_copied or self._backend is not None

    def begin_copy(self) -> None:
        # of a wrapper and the model in it the first counts, and of a save within a save
        if not self._is_copied:
            self._is_copied = True
            self._clock.switch('copy')

    def end_copy(self, checkpoint: Any) -> None:
        if not self._is_copied:
            # the model was copied in another way: all before was the copying
            self._is_copied = True
            self._clock.rename('copy')
        self._clock.switch('rest')
        if isinstance(checkpoint, Mapping):
            self._checkpoint = checkpoint
        self._surroundings.look_at_memory()

    def begin_serialise(self, backend: Any) -> None:
        # MMEngine's old FileClient holds the backend
        self._backend = type(getattr(backend, 'client', backend)).__name__
        self._clock.switch('serialise')

    def begin_write(self, data: Any = None, path: Any = None) -> None:
        # the buffer and its copy are there at once
        self._surroundings.look_at_memory()
        self._clock.switch('write')
        if isinstance(data, (bytes, bytearray, memoryview)):
            self._written_bytes = (self._written_bytes or 0) + len(data)
        if isinstance(path, (str, os.PathLike)):
            self.written_path = os.fspath(path)

    def end_write(self) -> None:
        self._clock.switch('rest')

    def end(self) -> None:
        """It is over."""
        self.total, self.phases = self._clock.end()

    def read_contents(
        self, path: str | None, error: str | None
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """What was written, and where to.

        Args:
            path: The file or folder, as far as it is known.
            error: Type of the exception that ended the save.

        Returns:
            Fields of a :class:`~mmgpu_hooks.schema.SaveRecord`, and why one of them
            is missing.
        """
        unknown: dict[str, str] = {}
        size = self._written_bytes
        if error is not None:
            size, unknown['bytes'] = None, f'it ended with {error}'
        elif size is None:
            size = read_size_bytes(path) if path is not None else None
            if size is None:
                unknown['bytes'] = 'neither a write nor a local file was seen'
        optimizer_bytes = hub_bytes = None
        if self._checkpoint is None:
            unknown['optimizer_bytes, message_hub_bytes'] = (
                'its contents were not shown by before_save_checkpoint'
            )
        else:
            optimizer_bytes = count_tensor_bytes(self._checkpoint.get('optimizer'))
            hub_bytes = count_history_bytes(self._checkpoint.get('message_hub'))
            self._checkpoint = None
        is_remote = None
        if self._backend in _LOCAL:
            is_remote = False
        elif error is None and self._backend is not None and path is not None:
            is_remote = not os.path.exists(path)
        figures = {
            'backend': self._backend,
            'is_remote': is_remote,
            'bytes': size,
            'optimizer_bytes': optimizer_bytes,
            'message_hub_bytes': hub_bytes,
        }
        return figures, unknown
