"""Keeps the trials of a plan, one JSON line each, so that it can go on later."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from mmgpu_hooks.config.files import verify_output
from mmgpu_hooks.config.loading import FlatConfig
from mmgpu_hooks.experiment.cards import VARIABLE, read_cards
from mmgpu_hooks.measure.host import read_host_limits
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.figures import plural
from mmgpu_hooks.schema.tried import Trial
from mmgpu_hooks.version import __version__

STORE_NAME = 'trials.jsonl'
_VERSION = 3
"""Raised when a key of a line changes its meaning or goes away."""

_LIMITS = (
    *('logical_cpus', 'affinity_cpus', 'cgroup_cpu_cores', 'slurm_cpus'),
    *('ram_total_bytes', 'cgroup_memory_bytes', 'shm_total_bytes'),
)
"""Those that do not change from one minute to the next."""
_PACKAGES = ('torch', 'mmengine', 'mmcv', 'mmdet')
_VARIABLES = (VARIABLE, 'OMP_NUM_THREADS', 'MKL_NUM_THREADS', 'PYTORCH_CUDA_ALLOC_CONF')
"""Of the environment, those that make the same training a faster or slower one."""


class TrialStore:
    """The file of one folder.

    Args:
        path: Of the file.
        identity: What a trial must have in common with those of now.
        descriptor: Of the open, locked file.
    """

    def __init__(
        self, path: Path, identity: Mapping[str, Any], descriptor: int
    ) -> None:
        self.path = path
        self._identity = {'version': _VERSION, **identity}
        self._descriptor = descriptor

    def append(self, trial: Trial) -> None:
        """Add one trial, in one write.

        Raises:
            OSError: If it cannot be written whole; nothing of it is left then.
        """
        raw = msgspec.json.encode({'identity': self._identity, 'trial': trial}) + b'\n'
        end = os.lseek(self._descriptor, 0, os.SEEK_END)
        # what a kill left of a line must not swallow this one
        if end and os.pread(self._descriptor, 1, end - 1) != b'\n':
            raw = b'\n' + raw
        if os.write(self._descriptor, raw) < len(raw):
            os.ftruncate(self._descriptor, end)
            words = 'space for only a part of a line'
            raise OSError(errno.ENOSPC, words, str(self.path))

    def read(
        self, keep: Callable[[Sequence[Trial]], list[Trial]]
    ) -> tuple[list[Trial], tuple[str, ...]]:
        """The trials that count, the newest of each name, and a note on the others.

        Args:
            keep: Says of those with the same identity which count.
        """
        kept: dict[str, Trial] = {}
        others, unlike = 0, dict[str, None]()
        for line in self.path.read_bytes().splitlines():
            try:
                body = msgspec.json.decode(line)
                trial = msgspec.convert(body['trial'], Trial)
                known = dict(body['identity'])
            except (ValueError, KeyError, TypeError, RecursionError):
                # what a kill left of a line
                continue
            if known == self._identity:
                kept[trial.name] = trial
                continue
            others += 1
            names = (n for n, own in self._identity.items() if known.get(n) != own)
            unlike.update(dict.fromkeys(names))
        notes = []
        if others:
            trials, what = plural(others, 'earlier trial'), ' and '.join(unlike)
            notes.append(f'Not reused: {trials} of another {what}.')
        return keep(list(kept.values())), tuple(notes)

    def clear(self) -> None:
        """Forget every trial."""
        os.ftruncate(self._descriptor, 0)


@contextlib.contextmanager
def open_store(
    folder: Path, identity: Mapping[str, Any], *, fresh: bool = False
) -> Iterator[TrialStore]:
    """Open the store of a folder, which is made, for this process alone.

    Args:
        folder: Of the plan.
        identity: Of :func:`read_identity`.
        fresh: Whether to forget what was measured before.

    Raises:
        UserError: If another process is at work in the folder.
        OSError: If it cannot be opened.
    """
    # late: Windows has none, and other commands run there
    import fcntl

    path = folder / STORE_NAME
    folder.mkdir(parents=True, exist_ok=True)
    verify_output(path)
    with path.open('ab+', buffering=0) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(
                f'expected {folder} for this command alone, found that another one is '
                'at work in it; wait for it, or name another folder with --work-dir.'
            ) from error
        store = TrialStore(path, identity, file.fileno())
        if fresh:
            store.clear()
        yield store


def read_identity(config: FlatConfig, **facts: Any) -> dict[str, Any]:
    """What two measurements must have in common to stand in one table.

    Args:
        config: As loaded; comments and the spelling of it are no matter.
        **facts: More of it, by what a sentence calls it.
    """
    limits = read_host_limits(ranks_on_host=1)
    cards: list[str] = []
    with contextlib.suppress(UserError):
        cards = [card.uuid for card in read_cards()]
    versions = {'python': platform.python_version(), 'mmgpu_hooks': __version__}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    host = {name: getattr(limits, name) for name in _LIMITS}
    return {
        'config': digest_config(config),
        'host': {'name': platform.node(), 'cards': cards, **host},
        'environment': {name: os.environ.get(name) for name in _VARIABLES},
        'versions': versions,
        **facts,
    }


def digest_config(config: FlatConfig) -> str:
    """The same for equal configs, in any process."""
    lines = sorted(f'{path!r} {_spell(value)}' for path, value in config.items())
    return hashlib.sha256('\n'.join(lines).encode()).hexdigest()


def _spell(value: object) -> str:
    # the text of a class or function may hold its address
    name = getattr(value, '__qualname__', None)
    if isinstance(name, str):
        return f'{getattr(value, "__module__", "")}.{name}'
    return repr(value)
