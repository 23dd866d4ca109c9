"""Records of short trial trainings and their sweeps, save benchmarks and profiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, List, NamedTuple, Optional, Tuple, Union

import msgspec

from mmgpu_hooks.schema.judged import Estimate
from mmgpu_hooks.schema.recorded import SaveRecord, StepOverhead
from mmgpu_hooks.schema.text import Text, listed, phrase


class SweepRecipe(NamedTuple):
    """Settings of a sweep that belong to the training recipe: batch size and GPUs.

    They make a batch larger.
    """

    batch_size: Optional[int]
    gpus: Optional[int]


@dataclass(frozen=True)
class SweepSetting:
    """Settings of one trial of a sweep; ``None`` keeps the config's value."""

    num_workers: int
    batch_size: Optional[int] = None
    """Number of images per batch of each process that trains."""
    prefetch_factor: Optional[int] = None
    pin_memory: Optional[bool] = None
    amp: Optional[bool] = None
    """True if the forward pass runs in mixed precision."""
    gpus: Optional[int] = None
    """Number of processes that torchrun starts, one per GPU."""
    others: Mapping[str, Any] = field(default_factory=dict)
    """Values of the trial's settings that have no field of their own, by name."""

    def __hash__(self) -> int:
        """Returns the hash of all settings' values, those of ``others`` included.

        Values of ``others`` are plain.
        """
        return hash((self.name, frozenset(self.others.items())))

    @classmethod
    def of(cls, values: Mapping[str, Any], **more: Any) -> SweepSetting:
        """Makes a sweep setting from values by name; ``None`` keeps the config's.

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
        """Settings that replace the config's values, by name, without AMP and GPUs."""
        named = {name: getattr(self, name) for name in _NAMED}
        known = {name: value for name, value in named.items() if value is not None}
        return {**known, **self.others}

    @property
    def name(self) -> Text:
        """Name of the setting for users: ``4 workers, batch 3, prefetch 2, AMP on``."""
        words = phrase('{workers}', workers=self.num_workers)
        return listed(filter(None, (words, self.group)))

    @property
    def recipe(self) -> SweepRecipe:
        """Batch size and GPUs: the part of the setting that is not traded for speed."""
        return SweepRecipe(self.batch_size, self.gpus)

    @property
    def group(self) -> Text:
        """Name of all settings but the workers: ``batch 3, prefetch 2, AMP on``."""
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
"""Names of the fields of `SweepSetting` that are DataLoader settings."""


@dataclass(frozen=True)
class GpuSpan:
    """GPU utilisation, in per cent, over one interval of a trial."""

    begin_s: float
    """Seconds from the first iteration's start to the start of the interval."""
    end_s: float
    util_pct: float
    zero_pct: Optional[float]
    """Per cent of the GPU samples that had 0 % utilisation."""
    samples: int
    is_warm_up: bool
    """True if the interval belongs to the warm-up of the trial.

    No figure of the row is taken over it."""


@dataclass(frozen=True)
class ModelBytes:
    """Bytes of a model's parameters, gradients and optimizer state in a training."""

    parameters: int
    """Bytes of the model's parameters and buffers."""
    gradients: int
    optimizer_state: int

    @property
    def total(self) -> int:
        """Bytes of parameters, gradients and optimizer state together."""
        return self.parameters + self.gradients + self.optimizer_state


@dataclass(frozen=True)
class SweepRow:
    """Result of one trial of a sweep; ``None`` stands for what was not measured."""

    setting: SweepSetting
    status: str
    """Status of the trial, such as ``completed``, ``failed`` or ``timed_out``.

    Or ``out_of_memory``, or ``loss_not_finite`` where the training diverged. Only one
    that completed can be best."""
    error: Optional[Text] = None
    """Decisive line of the error; ``None`` when the trial completed."""
    seconds: float = 0.0
    """Seconds from the start of the trial's process to its end."""
    iterations: int = 0
    """Number of timed iterations, without warm-up."""
    iter_s: Optional[Estimate] = None
    """Mean seconds of a steady iteration, saves and first waits of epochs left out."""
    data_wait_s: Optional[float] = None
    """Mean seconds of data wait in a steady iteration; a part of ``iter_s``."""
    images_per_s: Optional[float] = None
    gpu_util_pct: Optional[float] = None
    gpu_zero_pct: Optional[float] = None
    """Per cent of the GPU samples that had 0 % utilisation."""
    gpu_samples: int = 0
    """Number of samples of the GPU utilisation, without warm-up."""
    gpu_unknown: Optional[Text] = None
    """Reason why the GPU utilisation is unknown."""
    gpu_timeline: Tuple[GpuSpan, ...] = ()
    """GPU utilisation (per cent) by interval over the whole trial, warm-up included."""
    model_bytes: Optional[ModelBytes] = None
    memory_peak_bytes: Optional[int] = None
    """Peak bytes of GPU memory that CUDA's allocator allocated in the trial."""
    memory_reserved_bytes: Optional[int] = None
    """Peak bytes of GPU memory that CUDA's allocator reserved in the trial."""
    host_memory_bytes: Optional[int] = None
    """Peak bytes of host memory of the training process during the trial."""
    saves_s: Tuple[float, ...] = ()
    """Seconds of each checkpoint save during which loader workers ran.

    The first is left out."""
    save_s: Optional[float] = None
    """Median seconds of a checkpoint save during which loader workers ran."""
    save_run_delay_s: Optional[float] = None
    """Median seconds per checkpoint save that its thread waited for a core."""
    save_unknown: Optional[Text] = None
    """Reason why no checkpoint save was measured."""
    cpu_cores: Optional[float] = None
    """Mean number of cores in use by the training process and its workers."""
    external_cpu_cores: Optional[float] = None
    """Mean number of cores in use by other processes during the trial."""
    most_workers: Optional[int] = None
    """Largest number of workers that the host allows; ``None`` is unknown."""
    most_workers_reason: Optional[Text] = None
    folder: str = ''
    """Path of the folder with the trial's log and evidence file."""

    @property
    def is_measured(self) -> bool:
        """True if the trial has an iteration time that can be compared."""
        return self.iter_s is not None and self.status in ('completed', 'timed_out')

    @property
    def exceeds_host(self) -> bool:
        """True if the trial had more workers than the host allows."""
        most = self.most_workers
        return most is not None and self.setting.num_workers > most


@dataclass(frozen=True)
class BatchMemory:
    """Peak bytes of memory that one batch size took in any of its trials."""

    batch_size: int
    total_bytes: int
    """Peak bytes of CUDA's allocator; without CUDA, of the training process."""
    model_bytes: Optional[ModelBytes]
    reserved_bytes: Optional[int] = None
    """Peak bytes of GPU memory that CUDA's allocator reserved with the batch size."""


@dataclass(frozen=True)
class MemoryLine:
    """Line fitted to memory by batch size: ``memory = fixed + image x batch``."""

    group: str
    """Settings that all trials on the line have, such as ``AMP on``."""
    source: str
    """Source of the measured memory: ``cuda`` or ``host``.

    ``cuda`` is the peak of the allocator, ``host`` the training process."""
    points: Tuple[BatchMemory, ...]
    fixed_bytes: float
    """Bytes of memory at the line's intercept: memory that any batch size takes."""
    image_bytes: float
    """Bytes of memory by which the line grows per image of a batch."""
    residual_pct: float
    """Largest distance of measured memory from the line, per cent of the measured."""


@dataclass(frozen=True)
class Sweep:
    """Results of a sweep: one row per trial, the fastest settings, memory lines."""

    rows: Tuple[SweepRow, ...]
    """Results of the trials, in order of batch size and workers."""
    asked: int = 0
    """Number of trials that the sweep was asked for, each with its own settings.

    There are fewer rows when the sweep was stopped."""
    best: Tuple[SweepSetting, ...] = ()
    """Fastest settings that the host allows, one per batch size.

    The fastest of all comes first."""
    seconds: float = 0.0
    """Seconds from the sweep's last start or resumption to its end."""
    is_interrupted: bool = False
    notes: Tuple[str, ...] = ()
    memory_lines: Tuple[MemoryLine, ...] = ()
    """Lines of memory against batch size, if at least two sizes were measured."""

    def find_rivals(self, best: SweepRow) -> List[SweepRow]:
        """Finds trials of equal batch size that may be as fast as the given best trial.

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
    """Median seconds of a checkpoint save in a trial with a given number of workers.

    All medians are ``None`` where no save was measured.
    """

    num_workers: int
    status: str
    """Trial's status: ``completed``, ``failed``, ``timed_out`` or ``out_of_memory``."""
    error: Optional[Text] = None
    """Decisive line of the error; ``None`` when the trial completed."""
    saves: Tuple[SaveRecord, ...] = ()
    """Checkpoint saves in order, without the training's first one and failed ones."""
    won_s: Tuple[Optional[float], ...] = ()
    """Seconds of later data wait spared by batches loaded during each checkpoint save.

    ``None`` is unknown."""
    save_s: Optional[float] = None
    cpu_s: Optional[float] = None
    run_delay_s: Optional[float] = None
    blocked_s: Optional[float] = None
    other_cores: Optional[float] = None
    """Mean number of the host's cores that other processes used during the saves."""
    slow: int = 0
    """Number of checkpoint saves of the trial that were judged slow.

    By themselves and their own run."""
    cause: Optional[str] = None
    """Most frequent proven cause of the slow saves, one of :data:`SAVE_CAUSES`."""
    gross_s: Optional[float] = None
    """Seconds of the median save beyond the reference trial's; negative if shorter."""
    net_s: Optional[float] = None
    """Seconds lost per save: ``gross_s`` minus data waits saved afterwards.

    A part of ``gross_s``."""
    is_harmful: Optional[bool] = None
    """True if saves take longer than in the reference trial, beyond noise.

    By enough to matter, too; ``None`` for the reference, and when that is unknown."""
    remark: Optional[Text] = None
    """Remark on the trial, such as why the effect on saves is unknown."""

    @property
    def name(self) -> Text:
        """Name of the trial for users: ``1 worker`` or ``8 workers``."""
        return phrase('{workers}', workers=self.num_workers)


@dataclass(frozen=True)
class SaveBench:
    """Benchmark result: effect of the number of workers on checkpoint save times."""

    rows: Tuple[SaveBenchRow, ...]
    """Results of the trials, one per number of workers, fewest workers first."""
    reference: Optional[int] = None
    """Number of workers of the reference trial: the fewest with measured saves."""
    harmful_workers: Optional[int] = None
    """Smallest number of workers from which on checkpoint saves are slowed down.

    ``None`` when no measured number is, or that is unknown."""
    is_interrupted: bool = False
    seconds: float = 0.0
    asked: int = 0
    """Number of trials the save benchmark was asked for, one per number of workers.

    There are fewer rows when the bench was stopped."""


@dataclass(frozen=True)
class TrialSpec:
    """Specification of a trial: a short training of a config with other settings."""

    config: str
    """Absolute path of the config file: a trial may run elsewhere."""
    folder: str
    """Folder for everything that the trial writes, including its log.

    No other trial uses it."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Config settings that the trial changes, by dotted key as in ``--cfg-options``."""
    hook: Optional[Mapping[str, Any]] = field(default_factory=dict)
    """Arguments of GPUEfficiencyHook in this trial; ``None`` trains without the hook.

    The others stay as the config has them."""
    save_interval: Optional[int] = None
    """Number of iterations between checkpoint saves of the trial; ``None`` for none.

    It saves into the trial's folder, in the place of the config's checkpoint hooks; the
    newest is kept."""
    last_saves: int = 0
    """Number of checkpoint saves after the trial's last block of iterations.

    The first at once, the others ``save_gap`` apart."""
    save_gap: int = 0
    ranks: int = 1
    """Number of processes that train; several are started by torchrun."""
    is_whole: bool = False
    """True if the trial validates, saves and logs as the config says."""
    profiled: int = 0
    """Number of iterations that torch.profiler records; 0 for none."""
    keeps_hook: bool = False
    """True if GPUEfficiencyHook stays as the config places it.

    ``hook`` goes first."""


class TrialBlock(msgspec.Struct, frozen=True, tag_field='event', tag='block'):
    """Block of consecutive iterations of a trial, as its process reports them."""

    seconds: List[float]
    """Seconds of each iteration of the block, from the end of the one before it."""
    starts: List[int] = []
    """Indices within the block of the iterations that began an epoch."""
    batch_size: Optional[int] = None
    left: Optional[int] = None
    """Number of iterations from the block's end to the end of the training."""
    epoch: Optional[int] = None
    """Number of iterations per epoch of the trial."""
    is_loss_finite: bool = True
    """True if every loss logged up to the end of the block was a finite number."""
    model_bytes: Optional[ModelBytes] = None
    """Bytes of parameters, gradients and optimizer state; in the first block only."""


class TrialEnd(msgspec.Struct, frozen=True, tag_field='event', tag='over'):
    """End of a trial's process: as the process reported, or judged by how it died."""

    status: str
    """Status of the trial, such as ``completed`` or ``failed``; see :class:`Trial`."""
    error: Optional[str] = None
    """Decisive line of the error; ``None`` when the trial completed."""
    iterations: int = 0
    """Number of iterations trained, as far as the process could report it."""
    save_error: Optional[str] = None
    """Reason why the trial's last checkpoint saves ended the training."""


TrialEvent = Union[TrialBlock, TrialEnd]
"""Type of a line in a trial's events file: a `TrialBlock` or the `TrialEnd`."""


FIRST = 'first'
SECOND = 'second'
SIDES = (FIRST, SECOND)
"""Names of the two trainings that ``mmgpu verify`` compares, and of their folders."""


@dataclass(frozen=True)
class TrialRole:
    """Role of a trial in ``mmgpu verify``: first or second training, warm-up or not."""

    side: str
    """Compared training that the trial ran: ``first`` or ``second``."""
    is_held: bool
    """True if the two trainings are paused in turn; False if each trial starts anew."""
    is_warm_up: bool
    """True if the trial only warms up: its times are not compared."""


@dataclass(frozen=True)
class BlockFigures:
    """Iteration times of one block of iterations of ``mmgpu verify``.

    As its trial keeps them.
    """

    steady_s: float
    """Mean seconds of a steady iteration in a block of iterations."""
    batch_size: Optional[int]
    epoch: Optional[int]
    """Number of iterations per epoch of the trial."""
    starts_s: List[float]
    """Seconds beyond ``steady_s`` of each iteration that began an epoch."""
    late_s: float
    """Mean seconds of an iteration in the second half of a block of iterations."""
    left: Optional[int]
    """Number of iterations from the block's end to the end of the training."""


@dataclass(frozen=True)
class Trial:
    """Result of a trial: a short training that an experiment started.

    A training that fails is a result like any other.
    """

    name: str
    """Name of the trial, unique within a plan of trials."""
    status: str
    """Trial's status: ``completed``, ``failed``, ``timed_out`` or ``out_of_memory``."""
    error: Optional[Text] = None
    """Decisive line of the error; ``None`` when the trial completed."""
    seconds: float = 0.0
    """Seconds from the start of the trial's process to its end.

    Imports and the building of the model are included."""
    iterations: int = 0
    """Number of iterations trained, whatever the status."""
    folder: str = ''
    """Path of the folder with the trial's log and evidence file."""
    role: Optional[TrialRole] = None
    """Role of the trial in a comparison of two trainings by ``mmgpu verify``."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """Results that the experiment computed from the trial, by name, as JSON values."""


@dataclass(frozen=True)
class HostPart:
    """Mean CPU seconds of a part of an iteration, without and with optimisations."""

    plain_s: float
    """Mean CPU seconds of a part of an iteration, without optimisations."""
    optimized_s: Optional[float] = None
    """Mean CPU seconds of a part of an iteration with bit-identical optimisations.

    ``None`` where none of them could be used."""
    error_s: float = 0.0
    """Standard error, in seconds, of ``plain_s`` minus ``optimized_s``."""


@dataclass(frozen=True)
class Profile:
    """Seconds of a training's train steps by kind of work, from torch.profiler."""

    device: str
    iterations: int
    """Number of profiled iterations."""
    step_s: float
    """Seconds of a train step by the clock, the profiler's own work included."""
    plain_step_s: float
    """Median seconds of a train step without the profiler, before it ran."""
    parts: Mapping[str, float]
    """Seconds of a train step by kind of work; they add up to the whole step.

    Kernels of each, without CUDA operators of torch; ``idle`` is when none ran."""
    modules: Mapping[str, float]
    """Seconds per train step of the five slowest modules, by dotted name.

    Forward and backward. The name is empty for the model itself; no module contains
    another."""
    products_pct: Optional[float]
    """Per cent of a train step's busy time in convolutions and matrix products."""
    kernels: Optional[float]
    """Number of CUDA kernels and copies per train step; ``None`` without CUDA."""
    bound: Optional[str]
    """Bottleneck of a train step on a GPU: ``launches`` or ``kernels``."""
    bound_reason: Optional[Text]
    """Reason why the bottleneck of a train step is unknown."""
    amp: Optional[str]
    """Data type that autocast computes in; ``None`` without mixed precision."""
    capability: Optional[Tuple[int, int]]
    """CUDA compute capability of the GPU."""
    flags: Mapping[str, Any]
    """Flags of torch that were set while profiling: TF32 and cuDNN."""
    folder: str
    """Path of the folder with the profiler's trace."""
    host_parts: Mapping[str, HostPart] = field(default_factory=dict)
    """Host CPU seconds by part of an iteration, without the profiler.

    Those of :data:`HOST_PARTS` that there are."""
    uncovered_s: Optional[float] = None
    """Seconds of a train step in which no GPU kernel ran; ``None`` without CUDA.

    They are the most that the card waited for the host."""
    fills: Optional[float] = None
    """Number of new tensors that PyTorch fills in each train step for determinism.

    ``None`` where it fills none."""
    losses_pct: Optional[float] = None
    """Per cent of a step's busy time in loss functions, which AMP runs in float32."""
    counted: Optional[StepOverhead] = None
    """Counts of parameter groups, tensors etc. that cost host time in a train step."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Reasons why optimisations could not be used, by the optimisation's name."""


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
"""Names of the parts of an iteration that take host CPU time.

The last one is a worker's, and for a batch.
"""
