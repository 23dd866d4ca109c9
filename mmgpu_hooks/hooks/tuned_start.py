"""Starts a resumed training with the loader settings that its last run was tuned to."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from mmgpu_hooks.hooks.shared_room import SharedRoom
from mmgpu_hooks.hooks.sources import count_ranks_on_host
from mmgpu_hooks.measure.host import read_host_limits
from mmgpu_hooks.measure.loader.settings import read_batch_size, read_length
from mmgpu_hooks.measure.loader.switch import BookTeardown, LoaderSwitch
from mmgpu_hooks.schema.recorded import TunedLoader, TunedSettings
from mmgpu_hooks.schema.run import RunEvidence, read_evidence
from mmgpu_hooks.schema.run_folder import EVIDENCE_NAME, EvidenceError

_MOST_BYTES = 64 * 2**20
"""Largest size in bytes of a previous run's evidence file that is still read."""


class TunedStart(NamedTuple):
    """Change of a resumed run's loader settings from the config's to tuned ones."""

    switch: LoaderSwitch
    config: TunedSettings
    """Loader settings from the config, which the tuned settings replaced."""


def begin_tuned(
    runner: Any, loader: Any, book_teardown: BookTeardown
) -> TunedStart | None:
    """Sets the loader settings of a resumed training to those tuned in its last run.

    Each rank reads the records of rank 0, so all begin alike.

    Args:
        runner: About to train; its ranks are on one host.
        loader: Its train loader, which has made no iterator yet.
        book_teardown: Books the time in which old workers end.

    Returns:
        ``None`` where nothing is resumed, or nothing was found.
    """
    switch = LoaderSwitch(loader, ranks=runner.world_size, book_teardown=book_teardown)
    config = switch.settings
    batch_size = read_batch_size(loader)
    found = find_settled(runner, 'train', config, batch_size)
    if found is None or switch.find_obstacle() or switch.find_obstacle_to(found):
        return None
    # of several ranks all begin alike
    if runner.world_size == 1:
        first = _list_first(loader, batch_size)
        if switch.find_first_obstacle(found, first):
            return None
    switch.switch_between(found, switch.take_salt(0))
    return TunedStart(switch, config)


def _list_first(loader: Any, batch_size: int | None) -> Any:
    """Returns what a sampler that goes in order would give for the first batch."""
    if not loader._auto_collation:
        return 0
    return [*range(min(batch_size or 1, read_length(loader.dataset) or 1))]


def find_settled(
    runner: Any,
    loader: TunedLoader,
    config: TunedSettings,
    batch_size: int | None = None,
) -> TunedSettings | None:
    """Finds the settings that a resumed training's last run had tuned a loader to.

    Args:
        runner: About to train.
        loader: ``train`` or ``validation``.
        config: The loader's settings from the config.
        batch_size: Of the train loader; ``None`` if unknown.

    Returns:
        ``None`` where nothing is resumed or was found, where that run began with other
        settings, another batch size, ranks or cores, where ranks are on several hosts,
        where that run was killed for memory, and where ``/dev/shm`` does not hold the
        batches.
    """
    if not getattr(runner, '_resume', False):
        return None
    ranks = count_ranks_on_host(runner.world_size, os.environ)
    for evidence in _read_before(Path(runner.work_dir), Path(runner.log_dir)):
        if evidence.was_killed_for_memory:
            return None
        if evidence.tuned_of(loader) or _list_batch_bytes(evidence, loader):
            break
    else:
        return None
    if not ranks == runner.world_size == evidence.run.world_size:
        return None
    found, switches = _find_last_settled(evidence, loader), evidence.switches_of(loader)
    if found is None or found == config or not switches:
        return None
    if _loader_part(switches[0].old) != _loader_part(config):
        return None
    if batch_size not in (None, evidence.run.loader.batch_size):
        return None
    cores = read_host_limits(ranks_on_host=ranks).usable_cores
    if cores != evidence.run.host.usable_cores:
        return None
    if ranks > 1:
        # they are to begin alike, and the room may change from one to the next
        return found
    shared_room = SharedRoom()
    for size in _list_batch_bytes(evidence, loader):
        shared_room.note_batch(size)
    return found if shared_room.fits_beside(found) else None


def _list_batch_bytes(evidence: RunEvidence, loader: TunedLoader) -> list[int | None]:
    """Lists the bytes of a loader's batches by interval, or by validation."""
    if loader == 'train':
        return [interval.batch_bytes for interval in evidence.intervals]
    return [validation.batch_bytes for validation in evidence.validations]


def _find_last_settled(
    evidence: RunEvidence, loader: TunedLoader
) -> TunedSettings | None:
    """Finds a loader's last tuned settings in a run, without a change not yet judged.

    A change that was not judged yet may be what ended the run, and so may settings that
    an earlier run had found, if nothing was loaded with them.
    """
    has_loaded = bool(_list_batch_bytes(evidence, loader))
    settled: list[TunedSettings] = []
    for record in evidence.tuned_of(loader):
        if record.reason == 'found_before' and not has_loaded:
            continue
        if record.reason not in ('predicted', 'failed'):
            settled.append(record.new)
        elif record.reason == 'failed' and settled and settled[-1] == record.old:
            # its workers could not be started
            settled.pop()
    return settled[-1] if settled else None


def _loader_part(settings: TunedSettings) -> list[object]:
    """Returns worker number, prefetch factor and persistence from loader settings."""
    workers = settings.num_workers
    return [
        workers,
        settings.prefetch_factor if workers else None,
        settings.persistent_workers and workers > 0,
    ]


def _read_before(work_dir: Path, own: Path) -> Iterator[RunEvidence]:
    """Reads the evidence files of the earlier runs in a work_dir, newest first."""
    paths = sorted(work_dir.glob(f'*/vis_data/{EVIDENCE_NAME}'))
    others = [path for path in paths if path.parents[1].name != own.name]
    for path in reversed(others):
        with contextlib.suppress(EvidenceError, OSError):
            if path.stat().st_size <= _MOST_BYTES:
                yield read_evidence(path)
