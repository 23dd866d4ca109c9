"""Backends, hooks and checks for trainings that save."""

from __future__ import annotations

import errno
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

from mmengine.fileio import BaseStorageBackend, FileClient, register_backend
from mmengine.hooks import Hook
from mmengine.runner import Runner
from mmengine.runner import checkpoint as mmengine_checkpoint

GET_FILE_BACKEND = mmengine_checkpoint.get_file_backend
FILE_CLIENT = mmengine_checkpoint.FileClient


class ToyBackend(BaseStorageBackend):
    """Keeps what is written elsewhere than in a file.

    Args:
        put_s: Seconds that a write sleeps.
        is_full: Whether there is no room left then.
    """

    stored: ClassVar[dict[str, bytes]] = {}

    def __init__(self, put_s: float = 0.0, is_full: bool = False) -> None:
        self.put_s = put_s
        self.is_full = is_full

    def get(self, filepath: str) -> bytes:
        return self.stored[str(filepath)]

    def get_text(self, filepath: str) -> str:
        return self.get(filepath).decode()

    def put(self, obj: bytes, filepath: str) -> None:
        time.sleep(self.put_s)
        if self.is_full:
            raise OSError(errno.ENOSPC, 'No space left on device')
        self.stored[str(filepath)] = obj

    def join_path(self, filepath: str, *filepaths: str) -> str:
        return '/'.join([filepath, *filepaths])

    def isfile(self, filepath: str) -> bool:
        return str(filepath) in self.stored

    def remove(self, filepath: str) -> None:
        del self.stored[str(filepath)]


# MMEngine asks its old client for every path, whoever writes to it
register_backend('toy', ToyBackend, prefixes='toy', force=True)
FileClient.register_backend('toy', ToyBackend, prefixes='toy', force=True)


class SleepBeforeSave(Hook):
    """Makes saves slow: in ``rest``, not in a phase of its own."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        time.sleep(self.seconds)


class FailBeforeSave(Hook):
    """Has no save come to its end."""

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        raise KeyError('planted')


class SaveInsideSave(Hook):
    """Saves once more while a save lasts."""

    def __init__(self) -> None:
        self.is_inside = False

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        if not self.is_inside:
            self.is_inside = True
            runner.save_checkpoint(runner.work_dir, 'inner.pth', by_epoch=False)
            self.is_inside = False


class SaveInThread(Hook):
    """Saves at the fourth iteration, in a thread of its own."""

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: Any = None,
        outputs: Any = None,
    ) -> None:
        if batch_idx == 3:
            thread = threading.Thread(
                target=runner.save_checkpoint,
                args=(runner.work_dir, 'threaded.pth'),
                kwargs={'by_epoch': False},
            )
            thread.start()
            thread.join()


def assert_nothing_is_left(runner: Any) -> None:
    """Every stand-in of a save is gone."""
    assert mmengine_checkpoint.get_file_backend is GET_FILE_BACKEND
    assert mmengine_checkpoint.FileClient is FILE_CLIENT
    for hook in runner.hooks:
        assert '_publish_model' not in vars(hook)
        backend = getattr(hook, 'file_backend', None)
        assert backend is None or 'put' not in vars(backend)


def size_of(folder: Path, name: str | None) -> int:
    """Bytes of a file of the run."""
    assert name is not None
    return (folder / name).stat().st_size
