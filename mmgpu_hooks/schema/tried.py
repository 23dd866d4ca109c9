"""Short real trainings: trials, sweeps of settings, and saves beside busy workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, List, NamedTuple, Optional, Tuple, Union

import msgspec

from mmgpu_hooks.schema.judged import Estimate
from mmgpu_hooks.schema.recorded import SaveRecord, StepOverhead
from mmgpu_hooks.schema.text import Text, listed, phrase


class SweepRecipe(NamedTuple):
    """Settings that make a batch larger, and so belong to the recipe."""

    batch_size: Optional[int]
    gpus: Optional[int]


@dataclass(frozen=True)
class SweepSetting:
    """Settings of one trial of a sweep; ``None`` keeps the config's own."""

    num_workers: int
    batch_size: Optional[int] = None
    """Of each process that trains."""
    prefetch_factor: Optional[int] = None
    pin_memory: Optional[bool] = None
    amp: Optional[bool] = None
    """True if the forward pass runs in mixed precision."""
    gpus: Optional[int] = None
    """Processes that torchrun starts, one a card."""
    others: Mapping[str, Any] = field(default_factory=dict)
    """Further settings that were asked for, by name."""

    def __hash__(self) -> int:
        """Of the values: those of others are plain."""
        return hash((self.name, frozenset(self.others.items())))

    @classmethod
    def of(cls, values: Mapping[str, Any], **more: Any) -> SweepSetting:
        """The setting of values by name; ``None`` keeps the config's own.

        Args:
            values: Of any settings.
            **more: Fields that are no setting.
        """
        named = {key: value for key, value in values.items() if key in _NAMED}
        others = {
            key: value
            for key, value in values.items()
            if key not in _NAMED and value is not None
        }
        return cls(**named, **more, others=others)

    @property
    def values(self) -> Mapping[str, Any]:
        """Values of all settings that are not the config's own, by name."""
        named = {name: getattr(self, name) for name in _NAMED}
        known = {name: value for name, value in named.items() if value is not None}
        return {**known, **self.others}

    @property
    def name(self) -> Text:
        """``4 workers, batch 3, prefetch 2, AMP on``."""
        words = phrase('{workers}', workers=self.num_workers)
        return listed(filter(None, (words, self.group)))

    @property
    def recipe(self) -> SweepRecipe:
        """Its part that is not traded for speed."""
        return SweepRecipe(self.batch_size, self.gpus)

    @property
    def group(self) -> Text:
        """Everything but the workers: ``batch 3, prefetch 2, AMP on``."""
        parts = []
        if self.batch_size is not None:
            parts.append(phrase('batch {batch_size}', self))
        if self.prefetch_factor is not None:
            parts.append(phrase('prefetch {prefetch_factor}', self))
        switched = {'pin_memory': self.pin_memory, 'AMP': self.amp, **self.others}
        for name, value in switched.items():
            if value is True:
                parts.append(phrase('{setting} on', setting=name))
            elif value is False:
                parts.append(phrase('{setting} off', setting=name))
            elif value is not None:
                parts.append(phrase('{setting} {value}', setting=name, value=value))
        if self.gpus:
            parts.append(phrase('{gpus}', gpus=self.gpus))
        return listed(parts)


_NAMED = ('num_workers', 'batch_size', 'prefetch_factor', 'pin_memory')
"""Settings that have a field of their own."""


@dataclass(frozen=True)
class GpuSpan:
    """The card in one interval of a trial."""

    begin_s: float
    """Since the first iteration began."""
    end_s: float
    util_pct: float
    zero_pct: Optional[float]
    """Share of the samples at 0 %."""
    samples: int
    is_warm_up: bool
    """True if no figure of the row is taken over it."""


@dataclass(frozen=True)
class ModelBytes:
    """Memory of the trained model itself, counted in the training process."""

    parameters: int
    """Buffers included."""
    gradients: int
    optimizer_state: int

    @property
    def total(self) -> int:
        """Everything together."""
        return self.parameters + self.gradients + self.optimizer_state


@dataclass(frozen=True)
class SweepRow:
    """One trial; a figure is ``None`` where it was not measured."""

    setting: SweepSetting
    status: str
    """``completed``, ``failed``, ``timed_out``, ``out_of_memory``, or
    ``loss_not_finite`` where the training diverged. Only one that completed can be
    best."""
    error: Optional[str] = None
    """The decisive line; ``None`` when it completed."""
    seconds: float = 0.0
    """Of the whole trial, its start included."""
    iterations: int = 0
    """Measured ones, warm-up left out."""
    iter_s: Optional[Estimate] = None
    """A steady iteration, saves and first waits of epochs left out."""
    data_wait_s: Optional[float] = None
    """Part of ``iter_s``."""
    images_per_s: Optional[float] = None
    gpu_util_pct: Optional[float] = None
    gpu_zero_pct: Optional[float] = None
    """Share of the samples at 0 %."""
    gpu_samples: int = 0
    """Of the utilisation, warm-up left out."""
    gpu_unknown: Optional[Text] = None
    """Why the utilisation is unknown."""
    gpu_timeline: Tuple[GpuSpan, ...] = ()
    """Of the whole trial, warm-up included."""
    model_bytes: Optional[ModelBytes] = None
    memory_peak_bytes: Optional[int] = None
    """Of CUDA's allocator."""
    memory_reserved_bytes: Optional[int] = None
    """What CUDA's allocator keeps."""
    host_memory_bytes: Optional[int] = None
    """Most that the training process held of the host's memory."""
    saves_s: Tuple[float, ...] = ()
    """Each save of a checkpoint beside the running workers, the first left out."""
    save_s: Optional[float] = None
    """The median of them."""
    save_run_delay_s: Optional[float] = None
    """What a save waited for a core, median."""
    save_unknown: Optional[Text] = None
    """Why no save was measured."""
    cpu_cores: Optional[float] = None
    """In use by the training process and its workers, mean."""
    external_cpu_cores: Optional[float] = None
    """In use by others meanwhile."""
    most_workers: Optional[int] = None
    """The most that this host carries with this setting; ``None`` is unknown."""
    most_workers_reason: Optional[Text] = None
    folder: str = ''
    """With its log and its evidence."""

    @property
    def is_measured(self) -> bool:
        """True if it can be compared; what a trial did before it failed cannot be."""
        return self.iter_s is not None and self.status in ('completed', 'timed_out')

    @property
    def exceeds_host(self) -> bool:
        """True if it had more workers than the host carries."""
        most = self.most_workers
        return most is not None and self.setting.num_workers > most


@dataclass(frozen=True)
class BatchMemory:
    """The most that a batch size took in any of its trials."""

    batch_size: int
    total_bytes: int
    """The peak of CUDA's allocator; without CUDA of the training process."""
    model_bytes: Optional[ModelBytes]
    reserved_bytes: Optional[int] = None
    """What CUDA's allocator kept."""


@dataclass(frozen=True)
class MemoryLine:
    """``memory = fixed + image x batch``, by least squares."""

    group: str
    """What else the trials have in common, such as ``AMP on``."""
    source: str
    """``cuda``, the peak of the allocator, or ``host``, the training process."""
    points: Tuple[BatchMemory, ...]
    fixed_bytes: float
    """Taken before the first image."""
    image_bytes: float
    """By each further image."""
    residual_pct: float
    """Largest distance of a point from the line, as a share of the point."""


@dataclass(frozen=True)
class Sweep:
    """All trials of a config on this host."""

    rows: Tuple[SweepRow, ...]
    """By batch size and workers."""
    asked: int = 0
    """Settings that were asked for; fewer rows when it was stopped."""
    best: Tuple[SweepSetting, ...] = ()
    """The fastest that the host carries, one of each batch size; the fastest of all
    first."""
    seconds: float = 0.0
    """Of this start of the sweep."""
    is_interrupted: bool = False
    notes: Tuple[str, ...] = ()
    memory_lines: Tuple[MemoryLine, ...] = ()
    """Memory against batch size, where at least two batch sizes were measured."""

    def find_rivals(self, best: SweepRow) -> List[SweepRow]:
        """The other settings of its batch size whose intervals overlap the best one's.

        Args:
            best: A measured one.
        """
        assert best.iter_s is not None
        return [
            row
            for row in self.rows
            if row.setting != best.setting
            and row.setting.recipe == best.setting.recipe
            and row.is_measured
            and row.iter_s is not None
            and row.iter_s.low < best.iter_s.high
            and best.iter_s.low < row.iter_s.high
        ]


@dataclass(frozen=True)
class SaveBenchRow:
    """The saves beside one number of workers; figures are medians, per save.

    All of them are ``None`` where no save was measured.
    """

    num_workers: int
    status: str
    """``completed``, ``failed``, ``timed_out`` or ``out_of_memory``."""
    error: Optional[str] = None
    """The decisive line; ``None`` when it completed."""
    saves: Tuple[SaveRecord, ...] = ()
    """In order; the first of the training is left out, and any that failed."""
    won_s: Tuple[Optional[float], ...] = ()
    """What the workers won back after each; ``None`` is unknown."""
    save_s: Optional[float] = None
    cpu_s: Optional[float] = None
    run_delay_s: Optional[float] = None
    blocked_s: Optional[float] = None
    other_cores: Optional[float] = None
    """Cores of the host that others used while it saved."""
    slow: int = 0
    """Saves that were judged slow, by themselves and their own run."""
    cause: Optional[str] = None
    """Out of :data:`SAVE_CAUSES`: what held most of the slow ones, where proven."""
    gross_s: Optional[float] = None
    """Longer than the saves of the reference; negative when shorter."""
    net_s: Optional[float] = None
    """What the job lost of that: less what the workers won back meanwhile."""
    is_harmful: Optional[bool] = None
    """True if saves take longer by enough to matter, and beyond noise; ``None`` for the
    reference, and when that is unknown."""
    remark: Optional[Text] = None
    """Why that is unknown, or other words that belong to the row."""

    @property
    def name(self) -> Text:
        """``1 worker`` or ``8 workers``."""
        return phrase('{workers}', workers=self.num_workers)


@dataclass(frozen=True)
class SaveBench:
    """Effect of the number of workers on saves, on this host and with this model."""

    rows: Tuple[SaveBenchRow, ...]
    """By number of workers."""
    reference: Optional[int] = None
    """The fewest workers whose saves were measured: the others are set against it."""
    harmful_workers: Optional[int] = None
    """The smallest number from which on saves are harmed; ``None`` when no measured
    number is, or that is unknown."""
    is_interrupted: bool = False
    seconds: float = 0.0
    asked: int = 0
    """Settings that were to be trained; fewer rows when it was stopped."""


@dataclass(frozen=True)
class TrialSpec:
    """One training of a user's config with some settings of its own."""

    config: str
    """The config file, absolute: a trial may run elsewhere."""
    folder: str
    """Where everything it leaves goes, its log too; used by no other trial."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """By dotted key, as in ``--cfg-options``."""
    hook: Optional[Mapping[str, Any]] = field(default_factory=dict)
    """Arguments of GPUEfficiencyHook in this trial; the others stay as the config has
    them. ``None`` trains without the hook."""
    save_interval: Optional[int] = None
    """Iterations from one save into the trial's folder to the next, in the place of the
    config's checkpoint hooks; the newest is kept. ``None`` asks for none."""
    last_saves: int = 0
    """Saves after the last block: the first at once, the others ``save_gap`` apart."""
    save_gap: int = 0
    ranks: int = 1
    """Processes that train, started by torchrun where they are several."""
    is_whole: bool = False
    """True if it validates, saves and logs as the config says."""
    profiled: int = 0
    """Iterations that torch.profiler records; 0 for none."""
    keeps_hook: bool = False
    """True if GPUEfficiencyHook stays where the config has it; ``hook`` goes first."""


class TrialBlock(msgspec.Struct, frozen=True, tag_field='event', tag='block'):
    """Consecutive iterations of one training, as its process reports them."""

    seconds: List[float]
    """Each from the end of the one before."""
    starts: List[int] = []
    """Indices of those that began an epoch."""
    batch_size: Optional[int] = None
    left: Optional[int] = None
    """Iterations that the training still has."""
    epoch: Optional[int] = None
    """Iterations of an epoch."""
    is_loss_finite: bool = True
    """True if every loss up to its end was a number, as far as it is logged."""
    model_bytes: Optional[ModelBytes] = None
    """With the first block."""


class TrialEnd(msgspec.Struct, frozen=True, tag_field='event', tag='over'):
    """End of a trial's process: reported by it, or concluded from how it died."""

    status: str
    """As in :class:`Trial`."""
    error: Optional[str] = None
    """The decisive line; ``None`` when it completed."""
    iterations: int = 0
    """Iterations that it trained, as far as it could say so."""
    save_error: Optional[str] = None
    """Why its last saves ended the training."""


TrialEvent = Union[TrialBlock, TrialEnd]
"""A line of a trial's events file."""


FIRST = 'first'
SECOND = 'second'
SIDES = (FIRST, SECOND)
"""Sides of a comparison, and names of their folders."""


@dataclass(frozen=True)
class TrialRole:
    """Side of a comparison that a trial trained, and how."""

    side: str
    """One of :data:`SIDES`."""
    is_held: bool
    """True if the other side's training is held meanwhile, False if it has ended."""
    is_warm_up: bool
    """True if its times are not those that are compared."""


@dataclass(frozen=True)
class BlockFigures:
    """A measured block of ``mmgpu verify``, as its trial keeps it."""

    steady_s: float
    """A steady iteration, mean."""
    batch_size: Optional[int]
    epoch: Optional[int]
    """Iterations of an epoch."""
    starts_s: List[float]
    """What iterations that began an epoch took longer."""
    late_s: float
    """An iteration of the second half, mean."""
    left: Optional[int]
    """Iterations that the training still has."""


@dataclass(frozen=True)
class Trial:
    """Result of a trial; a training that fails is one like any other."""

    name: str
    """Of what was trained; a plan has no two of the same name."""
    status: str
    """``completed``, ``failed``, ``timed_out`` or ``out_of_memory``."""
    error: Optional[str] = None
    """The decisive line; ``None`` when it completed."""
    seconds: float = 0.0
    """Of the whole trial, imports and the building of the model included."""
    iterations: int = 0
    """Iterations trained, whatever the status."""
    folder: str = ''
    """With the log, and the evidence to be read again."""
    role: Optional[TrialRole] = None
    """In a comparison of two sides."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """What its plan made of it, as JSON."""


@dataclass(frozen=True)
class HostPart:
    """CPU that one part of an iteration takes of the training thread, in seconds."""

    plain_s: float
    """An iteration, mean."""
    optimized_s: Optional[float] = None
    """The same with the optimisations that leave all bits as they are; ``None`` where
    none of them could be used."""
    error_s: float = 0.0
    """Standard error of the difference."""


@dataclass(frozen=True)
class Profile:
    """Time of a training's steps by what it was spent on, by torch.profiler."""

    device: str
    iterations: int
    """Profiled ones."""
    step_s: float
    """By the clock, the profiler's own work included."""
    plain_step_s: float
    """Without the profiler: the median of a few before."""
    parts: Mapping[str, float]
    """Seconds in which kernels of each ran, without CUDA operators of torch; ``idle``
    is when none did. Together they are the step."""
    modules: Mapping[str, float]
    """Seconds of the five that take most, forward and backward, by dotted name, empty
    for the model itself; none contains another."""
    products_pct: Optional[float]
    """Share of the busy time in convolutions and matrix products."""
    kernels: Optional[float]
    """Kernels and copies per step; ``None`` without CUDA."""
    bound: Optional[str]
    """``launches`` or ``kernels``: what a step on a card waits for."""
    bound_reason: Optional[str]
    """Why that is unknown."""
    amp: Optional[str]
    """The type that autocast computes in; ``None`` without mixed precision."""
    capability: Optional[Tuple[int, int]]
    """Compute capability of the card."""
    flags: Mapping[str, Any]
    """torch's own: TF32 and cuDNN."""
    folder: str
    """With the trace."""
    host_parts: Mapping[str, HostPart] = field(default_factory=dict)
    """By part of an iteration, without the profiler: :data:`HOST_PARTS` as far as there
    are such."""
    uncovered_s: Optional[float] = None
    """Time of a step in which no kernel ran: what the host had the card wait for at
    most; ``None`` without CUDA."""
    fills: Optional[float] = None
    """New tensors that a step fills for determinism; ``None`` where it fills none."""
    losses_pct: Optional[float] = None
    """Share of the busy time in the losses, which autocast computes in float32."""
    counted: Optional[StepOverhead] = None
    """What the step has the host do, as a run of the same training counts it."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Why an optimisation could not be used, by its name."""


HOST_PARTS = (
    'forward and backward',
    'optimizer step',
    'clipping',
    'zeroing',
    'average',
    'schedulers',
    'batch received',
    'batch sent',
)
"""Parts of an iteration on the host. The last one is a worker's, and for a batch."""
