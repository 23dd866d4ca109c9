"""Records of short real trainings: trials, sweeps, saves beside busy workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, List, NamedTuple, Optional, Tuple, Union

import msgspec

from mmgpu_hooks.schema.judged import Estimate
from mmgpu_hooks.schema.recorded import SaveRecord, StepOverhead
from mmgpu_hooks.schema.text import Text, listed, phrase


class SweepRecipe(NamedTuple):
    """Settings of a sweep that belong to the recipe: they make a batch larger."""

    batch_size: Optional[int]
    gpus: Optional[int]


@dataclass(frozen=True)
class SweepSetting:
    """Settings of one trial of a sweep; ``None`` keeps the config's own."""

    num_workers: int
    batch_size: Optional[int] = None
    """Batch size of each process that trains."""
    prefetch_factor: Optional[int] = None
    pin_memory: Optional[bool] = None
    amp: Optional[bool] = None
    """True if the forward pass runs in mixed precision."""
    gpus: Optional[int] = None
    """Number of processes that torchrun starts, one per card."""
    others: Mapping[str, Any] = field(default_factory=dict)
    """Values of further settings that were asked for, by name."""

    def __hash__(self) -> int:
        """Hash of the values: those of ``others`` are plain."""
        return hash((self.name, frozenset(self.others.items())))

    @classmethod
    def of(cls, values: Mapping[str, Any], **more: Any) -> SweepSetting:
        """Make a setting from values by name; ``None`` keeps the config's own.

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
        """Values of all settings that differ from the config's own, by name."""
        named = {name: getattr(self, name) for name in _NAMED}
        known = {name: value for name, value in named.items() if value is not None}
        return {**known, **self.others}

    @property
    def name(self) -> Text:
        """Name for users: ``4 workers, batch 3, prefetch 2, AMP on``."""
        words = phrase('{workers}', workers=self.num_workers)
        return listed(filter(None, (words, self.group)))

    @property
    def recipe(self) -> SweepRecipe:
        """Part of the setting that is not traded for speed."""
        return SweepRecipe(self.batch_size, self.gpus)

    @property
    def group(self) -> Text:
        """Name of everything but the workers: ``batch 3, prefetch 2, AMP on``."""
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
"""Names of settings that have a field of their own."""


@dataclass(frozen=True)
class GpuSpan:
    """Samples of the card in one interval of a trial."""

    begin_s: float
    """Start of the interval, s since the first iteration began."""
    end_s: float
    util_pct: float
    zero_pct: Optional[float]
    """Share of the samples at 0 % utilisation."""
    samples: int
    is_warm_up: bool
    """True if the interval belongs to the warm-up: no figure of the row is taken over
    it."""


@dataclass(frozen=True)
class ModelBytes:
    """Memory of the trained model itself, counted in the training process."""

    parameters: int
    """Bytes of the parameters, buffers included."""
    gradients: int
    optimizer_state: int

    @property
    def total(self) -> int:
        """Sum of all parts."""
        return self.parameters + self.gradients + self.optimizer_state


@dataclass(frozen=True)
class SweepRow:
    """Result of one trial of a sweep; figures are ``None`` where not measured."""

    setting: SweepSetting
    status: str
    """Status: ``completed``, ``failed``, ``timed_out``, ``out_of_memory``, or
    ``loss_not_finite`` where the training diverged. Only one that completed can be
    best."""
    error: Optional[Text] = None
    """Decisive line of the error; ``None`` when the trial completed."""
    seconds: float = 0.0
    """Seconds of the whole trial, its start included."""
    iterations: int = 0
    """Number of measured iterations, warm-up left out."""
    iter_s: Optional[Estimate] = None
    """Mean steady iteration, s, saves and first waits of epochs left out."""
    data_wait_s: Optional[float] = None
    """Wait for data, a part of ``iter_s``."""
    images_per_s: Optional[float] = None
    gpu_util_pct: Optional[float] = None
    gpu_zero_pct: Optional[float] = None
    """Share of the samples at 0 % utilisation."""
    gpu_samples: int = 0
    """Number of samples of the utilisation, warm-up left out."""
    gpu_unknown: Optional[Text] = None
    """Reason why the utilisation is unknown."""
    gpu_timeline: Tuple[GpuSpan, ...] = ()
    """Samples of the card over the whole trial, warm-up included."""
    model_bytes: Optional[ModelBytes] = None
    memory_peak_bytes: Optional[int] = None
    """Peak of CUDA's allocator."""
    memory_reserved_bytes: Optional[int] = None
    """Memory that CUDA's allocator keeps."""
    host_memory_bytes: Optional[int] = None
    """Most host memory that the training process held."""
    saves_s: Tuple[float, ...] = ()
    """Length of each save of a checkpoint beside the running workers, the first left
    out."""
    save_s: Optional[float] = None
    """Median of ``saves_s``."""
    save_run_delay_s: Optional[float] = None
    """Median wait of a save for a core, s."""
    save_unknown: Optional[Text] = None
    """Reason why no save was measured."""
    cpu_cores: Optional[float] = None
    """Cores in use by the training process and its workers, mean."""
    external_cpu_cores: Optional[float] = None
    """Cores in use by other processes meanwhile."""
    most_workers: Optional[int] = None
    """Most workers that this host carries with this setting; ``None`` is unknown."""
    most_workers_reason: Optional[Text] = None
    folder: str = ''
    """Folder with the trial's log and evidence."""

    @property
    def is_measured(self) -> bool:
        """True if the trial can be compared; a failed one cannot."""
        return self.iter_s is not None and self.status in ('completed', 'timed_out')

    @property
    def exceeds_host(self) -> bool:
        """True if the trial had more workers than the host carries."""
        most = self.most_workers
        return most is not None and self.setting.num_workers > most


@dataclass(frozen=True)
class BatchMemory:
    """Most memory that a batch size took in any of its trials."""

    batch_size: int
    total_bytes: int
    """Peak of CUDA's allocator; without CUDA, of the training process."""
    model_bytes: Optional[ModelBytes]
    reserved_bytes: Optional[int] = None
    """Memory that CUDA's allocator kept."""


@dataclass(frozen=True)
class MemoryLine:
    """Memory against batch size, least squares: ``memory = fixed + image x batch``."""

    group: str
    """Settings that the trials have in common beside the batch size, such as ``AMP
    on``."""
    source: str
    """Source of the figures: ``cuda``, the peak of the allocator, or ``host``, the
    training process."""
    points: Tuple[BatchMemory, ...]
    fixed_bytes: float
    """Memory taken before the first image."""
    image_bytes: float
    """Memory that each further image takes."""
    residual_pct: float
    """Largest distance of a point from the line, as a share of the point."""


@dataclass(frozen=True)
class Sweep:
    """Results of all trials of a config on this host."""

    rows: Tuple[SweepRow, ...]
    """Rows, in order of batch size and workers."""
    asked: int = 0
    """Number of settings that were asked for; fewer rows when the sweep was stopped."""
    best: Tuple[SweepSetting, ...] = ()
    """Fastest settings that the host carries, one per batch size; the fastest of all
    first."""
    seconds: float = 0.0
    """Seconds of this start of the sweep."""
    is_interrupted: bool = False
    notes: Tuple[str, ...] = ()
    memory_lines: Tuple[MemoryLine, ...] = ()
    """Lines of memory against batch size, where at least two were measured."""

    def find_rivals(self, best: SweepRow) -> List[SweepRow]:
        """Find settings of the same batch size that may be as fast as the best one.

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
    """Saves of a trial with one number of workers; figures are medians, per save.

    All of them are ``None`` where no save was measured.
    """

    num_workers: int
    status: str
    """Status: ``completed``, ``failed``, ``timed_out`` or ``out_of_memory``."""
    error: Optional[Text] = None
    """Decisive line of the error; ``None`` when the trial completed."""
    saves: Tuple[SaveRecord, ...] = ()
    """Saves in order; the first of the training is left out, and any that failed."""
    won_s: Tuple[Optional[float], ...] = ()
    """Seconds that the workers won back after each save; ``None`` is unknown."""
    save_s: Optional[float] = None
    cpu_s: Optional[float] = None
    run_delay_s: Optional[float] = None
    blocked_s: Optional[float] = None
    other_cores: Optional[float] = None
    """Cores of the host that other processes used during the saves."""
    slow: int = 0
    """Number of saves that were judged slow, by themselves and their own run."""
    cause: Optional[str] = None
    """Most frequent proven cause of the slow saves, out of :data:`SAVE_CAUSES`."""
    gross_s: Optional[float] = None
    """Extra seconds compared with the saves of the reference; negative when shorter."""
    net_s: Optional[float] = None
    """Seconds of ``gross_s`` that the job lost: less what the workers won back
    meanwhile."""
    is_harmful: Optional[bool] = None
    """True if saves take longer by enough to matter, and beyond noise; ``None`` for the
    reference, and when that is unknown."""
    remark: Optional[Text] = None
    """Reason why the effect is unknown, or another remark on the row."""

    @property
    def name(self) -> Text:
        """Name for users: ``1 worker`` or ``8 workers``."""
        return phrase('{workers}', workers=self.num_workers)


@dataclass(frozen=True)
class SaveBench:
    """Effect of the number of workers on saves, on this host and with this model."""

    rows: Tuple[SaveBenchRow, ...]
    """Rows, in order of the number of workers."""
    reference: Optional[int] = None
    """Number of workers of the reference row: the fewest whose saves were measured."""
    harmful_workers: Optional[int] = None
    """Smallest number of workers from which on saves are harmed; ``None`` when no
    measured number is, or that is unknown."""
    is_interrupted: bool = False
    seconds: float = 0.0
    asked: int = 0
    """Number of settings that were to be trained; fewer rows when it was stopped."""


@dataclass(frozen=True)
class TrialSpec:
    """Order for one training of a user's config with some settings of its own."""

    config: str
    """Path of the config file, absolute: a trial may run elsewhere."""
    folder: str
    """Folder for everything that the trial leaves, its log too; used by no other
    trial."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings by dotted key, as in ``--cfg-options``."""
    hook: Optional[Mapping[str, Any]] = field(default_factory=dict)
    """Arguments of GPUEfficiencyHook in this trial; the others stay as the config has
    them. ``None`` trains without the hook."""
    save_interval: Optional[int] = None
    """Iterations from one save into the trial's folder to the next, in the place of the
    config's checkpoint hooks; the newest is kept. ``None`` asks for none."""
    last_saves: int = 0
    """Number of saves after the last block: the first at once, the others ``save_gap``
    apart."""
    save_gap: int = 0
    ranks: int = 1
    """Number of processes that train, started by torchrun where they are several."""
    is_whole: bool = False
    """True if the trial validates, saves and logs as the config says."""
    profiled: int = 0
    """Number of iterations that torch.profiler records; 0 for none."""
    keeps_hook: bool = False
    """True if GPUEfficiencyHook stays where the config has it; ``hook`` goes first."""


class TrialBlock(msgspec.Struct, frozen=True, tag_field='event', tag='block'):
    """Consecutive iterations of one training, as its process reports them."""

    seconds: List[float]
    """Seconds of each iteration, from the end of the one before."""
    starts: List[int] = []
    """Indices of the iterations that began an epoch."""
    batch_size: Optional[int] = None
    left: Optional[int] = None
    """Iterations that the training still has."""
    epoch: Optional[int] = None
    """Number of iterations in an epoch."""
    is_loss_finite: bool = True
    """True if every loss up to the block's end was a number, as far as it is logged."""
    model_bytes: Optional[ModelBytes] = None
    """Memory of the model itself, with the first block."""


class TrialEnd(msgspec.Struct, frozen=True, tag_field='event', tag='over'):
    """End of a trial's process: reported by it, or concluded from how it died."""

    status: str
    """Status, as in :class:`Trial`."""
    error: Optional[str] = None
    """Decisive line of the error; ``None`` when the trial completed."""
    iterations: int = 0
    """Number of iterations trained, as far as the process could report it."""
    save_error: Optional[str] = None
    """Reason why its last saves ended the training."""


TrialEvent = Union[TrialBlock, TrialEnd]
"""One line of a trial's events file."""


FIRST = 'first'
SECOND = 'second'
SIDES = (FIRST, SECOND)
"""Sides of a comparison, and names of their folders."""


@dataclass(frozen=True)
class TrialRole:
    """Side of a comparison that a trial trained, and how."""

    side: str
    """Side that was trained, out of :data:`SIDES`."""
    is_held: bool
    """True if the other side's training is held meanwhile, False if it has ended."""
    is_warm_up: bool
    """True if the trial's times are not those that are compared."""


@dataclass(frozen=True)
class BlockFigures:
    """A measured block of ``mmgpu verify``, as its trial keeps it."""

    steady_s: float
    """Mean steady iteration, s."""
    batch_size: Optional[int]
    epoch: Optional[int]
    """Number of iterations in an epoch."""
    starts_s: List[float]
    """Extra seconds of the iterations that began an epoch."""
    late_s: float
    """Mean iteration of the second half, s."""
    left: Optional[int]
    """Iterations that the training still has."""


@dataclass(frozen=True)
class Trial:
    """Result of a trial; a training that fails is one like any other."""

    name: str
    """Name of what was trained; a plan has no two of the same name."""
    status: str
    """Status: ``completed``, ``failed``, ``timed_out`` or ``out_of_memory``."""
    error: Optional[Text] = None
    """Decisive line of the error; ``None`` when the trial completed."""
    seconds: float = 0.0
    """Seconds of the whole trial, imports and the building of the model included."""
    iterations: int = 0
    """Number of iterations trained, whatever the status."""
    folder: str = ''
    """Folder with the log, and the evidence to be read again."""
    role: Optional[TrialRole] = None
    """Role in a comparison of two sides."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """Figures that the trial's plan derived from it, as JSON."""


@dataclass(frozen=True)
class HostPart:
    """CPU that one part of an iteration takes of the training thread, in seconds."""

    plain_s: float
    """Mean of an iteration, s."""
    optimized_s: Optional[float] = None
    """Mean with the optimisations that leave all bits as they are; ``None`` where none
    of them could be used."""
    error_s: float = 0.0
    """Standard error of the difference."""


@dataclass(frozen=True)
class Profile:
    """Profile of a training's steps by torch.profiler: time by kind of work."""

    device: str
    iterations: int
    """Number of profiled iterations."""
    step_s: float
    """Seconds of a step by the clock, the profiler's own work included."""
    plain_step_s: float
    """Seconds of a step without the profiler: the median of a few before."""
    parts: Mapping[str, float]
    """Seconds of a step by part: kernels of each, without CUDA operators of torch;
    ``idle`` is when none ran. Together they are the step."""
    modules: Mapping[str, float]
    """Seconds of the five that take most, forward and backward, by dotted name, empty
    for the model itself; none contains another."""
    products_pct: Optional[float]
    """Share of the busy time in convolutions and matrix products."""
    kernels: Optional[float]
    """Kernels and copies per step; ``None`` without CUDA."""
    bound: Optional[str]
    """Limit of a step on a card: ``launches`` or ``kernels``."""
    bound_reason: Optional[str]
    """Reason why the limit is unknown."""
    amp: Optional[str]
    """Type that autocast computes in; ``None`` without mixed precision."""
    capability: Optional[Tuple[int, int]]
    """Compute capability of the card."""
    flags: Mapping[str, Any]
    """Flags of torch: TF32 and cuDNN."""
    folder: str
    """Folder with the trace."""
    host_parts: Mapping[str, HostPart] = field(default_factory=dict)
    """Parts of an iteration on the host, without the profiler: those of
    :data:`HOST_PARTS` that there are."""
    uncovered_s: Optional[float] = None
    """Seconds of a step in which no kernel ran: the most that the card waited for the
    host; ``None`` without CUDA."""
    fills: Optional[float] = None
    """New tensors that a step fills for determinism; ``None`` where it fills none."""
    losses_pct: Optional[float] = None
    """Share of the busy time in the losses, which autocast computes in float32."""
    counted: Optional[StepOverhead] = None
    """Host work of the step, as a run of the same training counts it."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Reason why an optimisation could not be used, by its name."""


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
