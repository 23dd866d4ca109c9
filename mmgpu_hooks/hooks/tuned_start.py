"""Starts a resumed training with the loader settings that its last run was tuned to."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

from mmgpu_hooks.hooks.sources import count_ranks_on_host
from mmgpu_hooks.measure.host import read_host_limits
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
    found = find_settled(runner, 'train', config)
    if found is None or switch.find_obstacle() or switch.find_obstacle_to(found):
        return None
    switch.switch_between(found, switch.take_salt(0))
    return TunedStart(switch, config)


def find_settled(
    runner: Any, loader: TunedLoader, config: TunedSettings
) -> TunedSettings | None:
    """Finds the settings that a resumed training's last run had tuned a loader to.

    Args:
        runner: About to train.
        loader: ``train`` or ``validation``.
        config: The loader's settings from the config.

    Returns:
        ``None`` where nothing is resumed or was found, where that run began with other
        settings, ranks or cores, where ranks are on several hosts, and where that run
        was killed for memory.
    """
    if not getattr(runner, '_resume', False):
        return None
    ranks = count_ranks_on_host(runner.world_size, os.environ)
    evidence = _read_before(Path(runner.work_dir), Path(runner.log_dir))
    if evidence is None or evidence.was_killed_for_memory:
        return None
    if not ranks == runner.world_size == evidence.run.world_size:
        return None
    found = _find_last_settled(evidence, loader)
    if found is None or found == config:
        return None
    began = evidence.switches_of(loader)[0].old
    if _loader_part(began) != _loader_part(config):
        return None
    cores = read_host_limits(ranks_on_host=ranks).usable_cores
    return found if cores == evidence.run.host.usable_cores else None


def _find_last_settled(
    evidence: RunEvidence, loader: TunedLoader
) -> TunedSettings | None:
    """Finds a loader's last tuned settings in a run, without a change not yet judged.

    A change that was not judged yet may be what ended the run.
    """
    settled: list[TunedSettings] = []
    for record in evidence.tuned_of(loader):
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


def _read_before(work_dir: Path, own: Path) -> RunEvidence | None:
    """Reads the evidence file of the newest earlier run in a work_dir."""
    paths = sorted(work_dir.glob(f'*/vis_data/{EVIDENCE_NAME}'))
    others = [path for path in paths if path.parents[1].name != own.name]
    for path in reversed(others):
        try:
            if path.stat().st_size <= _MOST_BYTES:
                return read_evidence(path)
        except (EvidenceError, OSError):
            continue
    return None
