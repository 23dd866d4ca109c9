"""Which settings a sweep trains, and with what in the config. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmgpu_hooks.experiment.block_figures import LEAST_WARM_UP
from mmgpu_hooks.recommend.changes import KEY
from mmgpu_hooks.recommend.sweep_rows import LEAST_INTERVALS
from mmgpu_hooks.recommend.worker_cap import DEFAULT_PREFETCH
from mmgpu_hooks.schema import SweepSetting, TrialSpec

_LEAST_INTERVAL = 10
_SAVE_EVERY = 2
"""Intervals from one save to the next."""

_AMP, _FULL = 'AmpOptimWrapper', 'OptimWrapper'
_OF_AMP = ('loss_scale', 'dtype', 'use_fsdp')
"""Arguments of MMEngine's AmpOptimWrapper that its OptimWrapper refuses."""


@dataclass(frozen=True)
class SweepGrid:
    """What is asked for; an empty list keeps the config's own."""

    num_workers: Sequence[int]
    batch_sizes: Sequence[int | None] = (None,)
    prefetch_factors: Sequence[int | None] = (None,)
    pin_memory: bool = False
    """Whether each setting is trained without and with pinned memory."""
    amp: bool = False
    """Whether each setting is trained in full and in mixed precision."""

    def list_settings(self) -> tuple[SweepSetting, ...]:
        """Every combination once, in the order of the table."""
        settings = (
            # without workers nothing is fetched ahead
            SweepSetting(workers, batch, prefetch if workers else None, pin, amp)
            for amp, pin, batch, prefetch, workers in itertools.product(
                (False, True) if self.amp else (None,),
                (False, True) if self.pin_memory else (None,),
                _sort(self.batch_sizes),
                _sort(self.prefetch_factors),
                sorted(set(self.num_workers)),
            )
        )
        return tuple(dict.fromkeys(settings))


@dataclass(frozen=True)
class SweepPace:
    """How one trial is cut into intervals."""

    interval: int
    """Iterations: a round of all workers at least, whose batches come in bursts."""
    warm_up: int
    """First intervals, left out: what workers make while the model is built comes all
    at once."""

    @property
    def least_iterations(self) -> int:
        """As many as it trains however long they take, warm-up included."""
        # the one that is on its way when the others are judged
        return (self.warm_up + LEAST_INTERVALS + 1) * self.interval


@dataclass(frozen=True)
class TrialLimits:
    """When a trial ends that does not settle."""

    measure_s: float
    """Seconds of measuring, once there are ``LEAST_INTERVALS``."""
    whole_s: float
    """Seconds of the whole trial, its start included; then it is killed."""


@dataclass(frozen=True)
class SweepJob:
    """What is to be trained, and where."""

    config: str
    """Absolute."""
    folder: Path
    """Of the sweep; absolute."""
    settings: Sequence[SweepSetting]
    limits: TrialLimits
    identity: Mapping[str, Any]
    lengthened: dict[str, Any] = field(default_factory=dict)
    """Settings that keep a short training from ending early."""
    saves: bool = False
    seed: int = 0
    """Of the order."""
    ranks: int = 1
    """Processes that train together in each trial, a card each."""
    cards: Sequence[str] = ()
    """UUIDs of GPUs that trials run on side by side; without any, one trial at a time
    sees what this process sees."""


def plan_pace(setting: SweepSetting) -> SweepPace:
    """How a setting's trial is cut.

    Args:
        setting: With its workers and their batches in flight.
    """
    interval = max(_LEAST_INTERVAL, setting.num_workers)
    ahead = setting.num_workers * (setting.prefetch_factor or DEFAULT_PREFETCH)
    return SweepPace(interval, -(-max(LEAST_WARM_UP, ahead) // interval))


def make_spec(
    setting: SweepSetting,
    *,
    config: str,
    folder: str,
    lengthened: dict[str, Any],
    saves: bool,
    ranks: int = 1,
) -> TrialSpec:
    """The trial of a setting.

    Workers persist, so that short epochs do not make it a measurement of their start.

    Args:
        setting: What to set.
        config: Absolute.
        folder: Of this trial alone.
        lengthened: Settings that keep a short training from ending early.
        saves: Whether checkpoints are written.
        ranks: Processes that train together.
    """
    pace = plan_pace(setting)
    settings = {**lengthened, f'{KEY}num_workers': setting.num_workers}
    if setting.num_workers:
        settings[f'{KEY}persistent_workers'] = True
    named = {
        f'{KEY}batch_size': setting.batch_size,
        f'{KEY}prefetch_factor': setting.prefetch_factor,
        f'{KEY}pin_memory': setting.pin_memory,
    }
    settings |= {key: value for key, value in named.items() if value is not None}
    if setting.amp is not None:
        settings['optim_wrapper.type'] = _AMP if setting.amp else _FULL
    if setting.amp is False:
        settings |= {f'optim_wrapper.{key}': None for key in _OF_AMP}
    return TrialSpec(
        config=config,
        folder=folder,
        settings=settings,
        interval=pace.interval,
        save_interval=_SAVE_EVERY * pace.interval if saves else None,
        ranks=ranks,
    )


def folder_name(setting: SweepSetting) -> str:
    """A folder of its own for each setting: ``4-workers-batch-3``."""
    return setting.name.replace(', ', '-').replace(' ', '-')


def _sort(values: Sequence[int | None]) -> list[int | None]:
    return sorted(set(values), key=lambda value: value or 0)
