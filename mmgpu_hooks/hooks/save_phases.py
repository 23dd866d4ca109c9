"""Where the phases of a save begin and end, stamped while one save lasts.

A save of MMEngine is: text of the config, ``model.state_dict()`` and its copies, the
hooks of ``before_save_checkpoint``, ``torch.save`` into a buffer, and the backend's
``put`` of that buffer. For the time of one save these have a stand-in that stamps and
passes on, each on the instance or, where MMEngine looks a name up in its module, under
that name. Calls of other threads are passed on unseen. Whatever a save does in another
way (DeepSpeed's own files) passes no stamp and stays in ``rest``.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any, Callable, Protocol

from mmengine.runner import checkpoint as mmengine_checkpoint

from mmgpu_hooks.measure.patches import Patches
from mmgpu_hooks.measure.save import (
    PhaseClock,
    Surroundings,
    ThreadClock,
    count_history_bytes,
    count_tensor_bytes,
    read_size_bytes,
)
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


_in_use = threading.Lock()
"""Two runners that save at once in two threads would take off each other's stand-ins:
the second goes without."""


class SaveListener(Protocol):
    """Who is told how far a save is."""

    def begin_copy(self) -> None:
        """The copies of the model begin."""

    def end_copy(self, checkpoint: Any) -> None:
        """Everything is copied; the hooks of ``before_save_checkpoint`` come next."""

    def begin_serialise(self, backend: Any) -> None:
        """The backend is there, ``torch.save`` comes next."""

    def begin_write(self, data: Any = None, path: Any = None) -> None:
        """The backend is about to write, with the arguments of its ``put``."""

    def end_write(self) -> None:
        """It has written, or failed."""


class SaveStamps:
    """Sets the stand-ins when made, and takes them away in :meth:`close`.

    Args:
        runner: Whose checkpoint is saved.
        listener: Who is told.
        on_error: Gets what the listener raises.
    """

    def __init__(
        self,
        runner: Any,
        listener: SaveListener,
        on_error: Callable[[Exception], None],
    ) -> None:
        self._listener = listener
        self._on_error = on_error
        self._thread = threading.get_ident()
        self._patches = Patches()
        self._holds_lock = _in_use.acquire(blocking=False)
        if not self._holds_lock:
            return
        try:
            self._stand_in(runner)
        except BaseException:
            self.close()
            raise

    def _stand_in(self, runner: Any) -> None:
        # a wrapper (DDP) is passed over by who wants the plain model
        for model in (runner.model, getattr(runner.model, 'module', None)):
            if hasattr(model, 'state_dict'):
                self._stand_in_once_for_state_dict(model)
        patches = self._patches
        patches.set(runner, 'call_hook', self._around_call_hook(runner.call_hook))
        names = vars(mmengine_checkpoint)
        if 'get_file_backend' in names:
            around = self._around_backend(names['get_file_backend'])
            patches.set(mmengine_checkpoint, 'get_file_backend', around)
        if 'FileClient' in names:
            client = _FileClientStandIn(names['FileClient'], self._seen)
            patches.set(mmengine_checkpoint, 'FileClient', client)

    def close(self) -> None:
        """Take every stand-in away; a second call does nothing.

        One that somebody replaced meanwhile is left alone, and is inert.
        """
        self._thread = -1
        self._patches.close()
        if self._holds_lock:
            self._holds_lock = False
            _in_use.release()

    def _is_ours(self) -> bool:
        return threading.get_ident() == self._thread

    def _tell(self, what: Callable[..., None], *args: Any) -> None:
        try:
            what(*args)
        except Exception as error:  # noqa: BLE001  # the save must not see it
            self._on_error(error)

    def _stand_in_once_for_state_dict(self, model: Any) -> None:
        names = vars(model)
        original = model.state_dict

        def state_dict(*args: Any, **kwargs: Any) -> Any:
            if self._is_ours():
                # taken away at once: the model may be part of what is pickled
                if names.get('state_dict') is state_dict:
                    del names['state_dict']
                self._tell(self._listener.begin_copy)
            return original(*args, **kwargs)

        # an instance that has its own already is left alone
        if 'state_dict' not in names:
            self._patches.set(model, 'state_dict', state_dict)

    def _around_call_hook(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call_hook(*args: Any, **kwargs: Any) -> Any:
            name = args[0] if args else kwargs.get('fn_name')
            if name == 'before_save_checkpoint' and self._is_ours():
                self._tell(self._listener.end_copy, kwargs.get('checkpoint'))
            return original(*args, **kwargs)

        return call_hook

    def _around_backend(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def get_file_backend(*args: Any, **kwargs: Any) -> Any:
            return self._seen(original(*args, **kwargs))

        return get_file_backend

    def _seen(self, backend: Any) -> Any:
        """A backend that is about to be written to, its ``put`` stamped."""
        original = getattr(backend, 'put', None)
        if self._is_ours() and callable(original) and hasattr(backend, '__dict__'):
            self._tell(self._listener.begin_serialise, backend)

            def put(*args: Any, **kwargs: Any) -> Any:
                if not self._is_ours():
                    return original(*args, **kwargs)
                self._tell(self._listener.begin_write, *args, *kwargs.values())
                try:
                    return original(*args, **kwargs)
                finally:
                    self._tell(self._listener.end_write)

            self._patches.set(backend, 'put', put)
        return backend


class _FileClientStandIn:
    """MMEngine's old ``FileClient``, whose clients write as backends do.

    Args:
        original: The class.
        seen: Stamps a client that is about to be written to.
    """

    def __init__(self, original: Any, seen: Callable[[Any], Any]) -> None:
        self._original = original
        self._seen = seen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._original(*args, **kwargs)

    def infer_client(self, *args: Any, **kwargs: Any) -> Any:
        client = self._original.infer_client(*args, **kwargs)
        # asked for in each save; written to only when somebody chose it
        chosen = args[0] if args else kwargs.get('file_client_args')
        return client if chosen is None else self._seen(client)
