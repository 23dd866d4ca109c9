"""Stores an experiment's ended trials, so that a later start can reuse them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from mmgpu_hooks.config.files import verify_output, write_atomic
from mmgpu_hooks.config.loading import FlatConfig
from mmgpu_hooks.experiment.cards import read_cards
from mmgpu_hooks.measure.host import read_host_limits
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.text import Text, decode_text, encode_text, phrase
from mmgpu_hooks.schema.tried import Trial
from mmgpu_hooks.version import __version__

STORE_NAME = 'trials.json'
_VERSION = 6
"""Version of the trials file's format; a trial of another version is not reused."""

_PACKAGES = ('torch', 'mmengine', 'mmcv', 'mmdet')
_VARIABLES = (
    'CUDA_VISIBLE_DEVICES',
    'PYTORCH_CUDA_ALLOC_CONF',
    'OMP_NUM_THREADS',
    'MKL_NUM_THREADS',
)
"""Names of environment variables that affect how fast a training runs."""


class KeptTrials(NamedTuple):
    """Stored trials of an experiment's earlier starts that can be reused."""

    trials: Sequence[Trial] = ()
    notes: tuple[Text, ...] = ()
    """Note that stored trials of another config, host or version are not reused."""


class TrialStore:
    """Stores an experiment's trials in one JSON file, written anew for each trial.

    Args:
        path: Of the file.
        identity: What a trial must have in common with those of now.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self._path = path
        self._identity = {'version': _VERSION, **identity}
        self._kept: dict[str, Trial] = {}

    def append(self, trial: Trial) -> None:
        """Adds a trial to the store, and writes the file of all trials anew.

        Raises:
            OSError: If it cannot be written; those before it are there then.
        """
        self._kept[trial.name] = trial
        body = {'identity': self._identity, 'trials': list(self._kept.values())}
        write_atomic(self._path, msgspec.json.encode(body, enc_hook=encode_text))

    def read(self, keep: Callable[[Sequence[Trial]], list[Trial]]) -> KeptTrials:
        """Reads those stored trials of earlier starts that can be reused.

        Args:
            keep: Says of those with the same identity which count.
        """
        try:
            body = msgspec.json.decode(self._path.read_bytes())
            trials = msgspec.convert(body['trials'], list[Trial], dec_hook=decode_text)
            known = dict(body['identity'])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return KeptTrials()
        unlike = [
            name for name, own in self._identity.items() if known.get(name) != own
        ]
        if unlike:
            facts = {'earlier': len(trials), 'what': tuple(unlike)}
            note = phrase(
                'Not reused: 1 earlier trial of another {what:&}.', what=facts['what']
            )
            if len(trials) != 1:
                note = phrase(
                    'Not reused: {earlier} earlier trials of another {what:&}.', **facts
                )
            return KeptTrials(notes=(note,))
        self._kept = {trial.name: trial for trial in trials}
        return KeptTrials(keep(trials))

    def clear(self) -> None:
        """Deletes all trials of the experiment from the store."""
        self._path.unlink(missing_ok=True)


@contextlib.contextmanager
def open_store(
    folder: Path, identity: Mapping[str, Any], *, fresh: bool = False
) -> Iterator[TrialStore]:
    """Opens the store of trials in a folder, locked for this process.

    The folder is created if missing.

    Args:
        folder: Of the plan.
        identity: Of :func:`read_identity`.
        fresh: Whether to forget what was measured before.

    Raises:
        UserError: If another process is at work in the folder.
        OSError: If it cannot be opened.
    """
    try:
        import fcntl
    except ImportError:  # Windows, where other commands run
        raise UserError(
            phrase(
                'expected a system with file locks for a command that trains, such as '
                'Linux, found none; run it there.'
            )
        ) from None

    folder.mkdir(parents=True, exist_ok=True)
    verify_output(lock := folder / 'lock')
    with lock.open('ab') as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(
                phrase(
                    'expected {folder} for this command alone, found that another one '
                    'is at work in it; wait for it, or name another folder with '
                    '--work-dir.',
                    folder=folder,
                )
            ) from error
        store = TrialStore(folder / STORE_NAME, identity)
        if fresh:
            store.clear()
        yield store


def read_identity(config: FlatConfig, **facts: Any) -> dict[str, Any]:
    """Reads the config, host and GPUs that trials must share to be compared.

    Args:
        config: As loaded; comments and the spelling of it are no matter.
        **facts: More of it, by what a sentence calls it.
    """
    host = read_host_limits(ranks_on_host=1)
    cards: list[str | None] = []
    with contextlib.suppress(UserError):
        cards = [card.uuid for card in read_cards()]
    versions = {'python': platform.python_version(), 'mmgpu_hooks': __version__}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {
        'config': digest_config(config),
        'host': {
            'name': platform.node(),
            'cards': cards,
            'affinity_cpus': host.affinity_cpus,
            'cgroup_cpu_cores': host.cgroup_cpu_cores,
            'slurm_cpus': host.slurm_cpus,
        },
        'environment': {name: os.environ.get(name) for name in _VARIABLES},
        'versions': versions,
        **facts,
    }


def digest_config(config: FlatConfig) -> str:
    """Returns the SHA-256 digest of a loaded config, the same for equal configs."""
    lines = sorted(f'{path!r} {_spell(value)}' for path, value in config.items())
    return hashlib.sha256('\n'.join(lines).encode()).hexdigest()


def _spell(value: object) -> str:
    # the text of a class or function may hold its address
    name = getattr(value, '__qualname__', None)
    if isinstance(name, str):
        return f'{getattr(value, "__module__", "")}.{name}'
    return repr(value)
