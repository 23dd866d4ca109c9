"""What is in the evidence file?

``<work_dir>/<timestamp>/vis_data/gpu_efficiency.jsonl`` is rank 0's; other ranks write
``gpu_efficiency_rank<N>.jsonl`` beside it. A Runner that trains a second time writes
``gpu_efficiency.2.jsonl``, which ``mmgpu recommend`` reads when it is named.

One JSON object per line, whose ``kind`` names the record. Lines are only ever appended,
each in one write, so a run that is killed leaves every earlier line whole. The reader
skips and counts a torn last line, and a line with a value that no measurement gives
(negative, above 10^18, of another type, missing). It ignores fields that it does not
know. Nothing in the file is ever executed.

Units are in the names (``_s`` seconds, ``_hours``, ``_bytes``, ``_pct`` per cent). What
is unknown is ``null`` or left out, and never zero; but for the first line, a field that
has its usual value (none, an empty list) is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Optional, Tuple, Union

import msgspec

from mmgpu_hooks.schema.text import phrase

SCHEMA_VERSION = 2
"""Version of the evidence format; a reader refuses files of any other version."""

_MOST = 10**18
"""Largest plausible measured value, whatever its unit.

More bytes than any host has, more seconds than the universe.
"""

MOST_BATCH_SIZES = 1_000
"""Maximum number of distinct padded batch sizes, in pixels, remembered in a run."""

Count = Annotated[int, msgspec.Meta(ge=0, le=_MOST)]
"""Type of a measured whole number: from 0 to 10^18."""

Number = Annotated[float, msgspec.Meta(ge=0, le=_MOST)]
"""Type of a measured real number: from 0 to 10^18."""


class Recorded(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Base class of all records in a training run's file of measurements.

    No record can refer to itself: hence no ``gc``.
    """


class EvidenceLine(Recorded, frozen=True, tag_field='kind'):
    """Base class of records that are each one JSON line of a measurement file."""


class DurationStats(Recorded, frozen=True, kw_only=True):
    """Mean, median and 95th percentile of a duration, over ``count`` occurrences."""

    count: Count
    """Number of measured durations that the statistics are taken over."""
    total_s: Number
    """Sum of all measured durations, in seconds."""
    mean_s: Number
    p50_s: Number
    """Median of the duration, in seconds."""
    p95_s: Number
    """95th percentile of the duration in seconds, linearly interpolated."""


class LoaderSettings(Recorded, frozen=True, kw_only=True):
    """Live attributes of a ``DataLoader``, read from the object and from no file."""

    num_workers: Optional[Count] = None
    persistent_workers: Optional[bool] = None
    prefetch_factor: Optional[Count] = None
    """Number of batches in flight per worker; ``None`` without workers."""
    pin_memory: Optional[bool] = None
    batch_size: Optional[Count] = None
    """Batch size per rank, read from the batch sampler."""
    batches_per_epoch: Optional[Count] = None
    dataset_length: Optional[Count] = None
    image_decoder: Optional[str] = None
    """Image decoder of the pipeline: ``cv2``, ``turbojpeg`` or ``pillow``.

    Its ``imdecode_backend``; ``None`` where no transform has one."""
    object_bytes: Optional[Count] = None
    """Estimated bytes of Python objects in the dataset's attribute ``object_name``.

    ``None`` below 1 MiB."""
    object_count: Optional[Count] = None
    """Number of entries in the dataset's attribute ``object_name``."""
    object_name: Optional[str] = None
    """Attribute of the dataset that holds most Python objects.

    Such as ``CocoDataset.data_list``."""


class TunedSettings(Recorded, frozen=True, kw_only=True):
    """``DataLoader`` settings that ``tune=True`` can change."""

    num_workers: Count
    prefetch_factor: Optional[Count] = None
    """Number of batches in flight per worker; ``None`` takes PyTorch's default."""
    persistent_workers: bool = False
    opencv_num_threads: Optional[Count] = None
    """Number of OpenCV threads per worker; ``None`` leaves the number as it is."""
    worker_nice: Optional[Count] = None
    """Nice value of the loader's workers; ``None`` leaves the priority as it is."""


class HostLimits(Recorded, frozen=True, kw_only=True):
    """Limits of this host on CPUs, memory and open files of one training process."""

    logical_cpus: Optional[Count] = None
    affinity_cpus: Optional[Count] = None
    """Number of CPUs that the scheduler lets this process run on."""
    unbound_cpus: Optional[Count] = None
    """Number of CPUs this process could use before it was bound to ``affinity_cpus``.

    A library, or code of the training; ``None`` when nothing did."""
    bound_by: Optional[str] = None
    """Environment variables that bound this process to fewer CPUs.

    ``None`` when it is unknown what did."""
    wider_thread_cpus: Optional[Count] = None
    """Number of CPUs another thread of the process may use, if over ``affinity_cpus``.

    Where nothing shows that the main thread ever had as many."""
    manager: Optional[str] = None
    """Name of the system that limits this process, such as ``kubernetes`` or ``slurm``.

    Or ``docker``, ``podman``, ``systemd``; ``None`` where nothing says so."""
    cgroup_cpu_cores: Optional[Number] = None
    """Smallest CPU quota, in cores, over all cgroup ancestors; ``None`` is no quota."""
    slurm_cpus: Optional[Count] = None
    """Number of CPUs in ``SLURM_CPUS_PER_TASK`` when SLURM started the process."""
    slurm_bound_cpus: Optional[Count] = None
    """Number of CPUs in the mask that SLURM says it set for this task."""
    slurm_given_cpus: Optional[Count] = None
    """Number of CPUs that SLURM gave this task, if ``srun`` bound it to fewer.

    ``None`` where it did not."""
    slurm_tasks: Optional[Count] = None
    """Number of tasks of the SLURM step, if ``srun`` narrowed this task's CPUs.

    ``None`` where it did not."""
    slurm_task_ranks: Optional[Count] = None
    """Number of training ranks that share the CPUs of this rank's SLURM task.

    ``None`` outside of SLURM."""
    slurm_memory_bytes: Optional[Count] = None
    """Bytes of memory SLURM gave the job on this node; ``None`` without a limit."""
    mended_cores: Optional[Number] = None
    """Number of cores that a rank could use if ``srun`` bound its task to all its CPUs.

    ``None`` where it did."""
    ranks_on_host: Count = 1
    usable_cores: Optional[Number] = None
    """Number of cores that this rank may use: the smallest of its limits.

    Of ``unbound_cpus`` where the process is bound. Limits of the host are divided by
    the ranks on it; CPUs that SLURM gave this task alone are not."""
    ram_total_bytes: Optional[Count] = None
    ram_available_bytes: Optional[Count] = None
    cgroup_memory_bytes: Optional[Count] = None
    """Smallest memory limit, in bytes, over all cgroup ancestors."""
    shm_total_bytes: Optional[Count] = None
    """Size in bytes of ``/dev/shm``, through which workers send batches."""
    shm_free_bytes: Optional[Count] = None
    open_files_soft: Optional[Count] = None
    """Soft limit on the number of open files of this process."""

    @property
    def ranks(self) -> int:
        """Number of training ranks on this host, at least 1.

        An edited file may say none.
        """
        return max(self.ranks_on_host, 1)

    @property
    def cores_had(self) -> Optional[float]:
        """Number of usable cores the run had: at most the CPUs it was bound to."""
        usable, bound = self.usable_cores, self.affinity_cpus
        if usable is None or bound is None or self.unbound_cpus is None:
            return usable
        return min(usable, bound)


class GpuDevice(Recorded, frozen=True, kw_only=True):
    """Name, UUID, memory size and driver version of the GPU of this rank."""

    name: Optional[str] = None
    uuid: Optional[str] = None
    memory_total_bytes: Optional[Count] = None
    driver_version: Optional[str] = None


class AveragedModel(Recorded, frozen=True, kw_only=True):
    """Averaged model that an EMA hook updates during training."""

    kind: str
    """Class of the averaged model, such as ``ExpMomentumEMA``."""
    tensors: Count
    """Number of tensors that one update of the averaged model averages."""
    interval: Optional[Count] = None
    """Number of iterations from one update of the averaged model to the next."""


class StepOverhead(Recorded, frozen=True, kw_only=True):
    """Counts of parameter groups, tensors etc. that cost host time in a train step."""

    optimizer: Optional[str] = None
    """Class of the optimizer; of several, the one with most parameter groups."""
    groups: Optional[Count] = None
    """Number of parameter groups of the optimizer."""
    settings: Optional[Count] = None
    """Number of distinct sets of options (``lr`` etc.) among the parameter groups."""
    is_fused: Optional[bool] = None
    """True if the optimizer's step is one kernel for many tensors (``fused=True``)."""
    clipped_tensors: Optional[Count] = None
    """Number of tensors whose gradients are clipped in each train step.

    ``None`` without ``clip_grad``."""
    averages: Tuple[AveragedModel, ...] = ()
    fills_new_tensors: Optional[bool] = None
    """True if PyTorch fills each new tensor, as with deterministic algorithms.

    See ``torch.utils.deterministic.fill_uninitialized_memory``."""
    is_compiled: Optional[bool] = None
    """True if the training compiles the model by torch.compile (``compile``)."""
    uses_tf32: Optional[bool] = None
    """True if convolutions may compute in TF32; ``None`` where the GPU lacks TF32."""


class ValInterval(Recorded, frozen=True, kw_only=True):
    """Validation interval that holds from a given epoch or iteration of training on."""

    begin: Count
    """Epoch from which the validation interval holds, 1-based; 0 from the start on.

    In iteration-based training, ``begin`` and ``interval`` count iterations."""
    interval: Count


class TrainingPlan(Recorded, frozen=True, kw_only=True):
    """Schedule of validations and saves, as set by the loop and CheckpointHook."""

    val_intervals: Tuple[ValInterval, ...] = ()
    """Epochs or iterations between validations, and from when on each interval holds.

    It validates at the very end, too."""
    val_begin: Count = 1
    """Number of the earliest epoch or iteration after which training may validate."""
    save_interval: Optional[Count] = None
    """Number of epochs or iterations from one checkpoint save to the next.

    ``None`` where none is saved in between. Saves of the best are not planned."""
    saves_by_epoch: bool = True
    save_begin: Count = 0
    saves_last: bool = False
    """True if a checkpoint is saved at the very end, whatever the interval."""


class RunRecord(
    EvidenceLine, frozen=True, kw_only=True, tag='run', omit_defaults=False
):
    """First record of an evidence file: settings, host and versions of the training."""

    started_unix_s: Number
    """Unix time of the training run's start; a label, not used for durations."""
    build_s: Number = 0.0
    """Seconds from building the Runner to the start of its train loop.

    They are the part of ``startup`` that is in no interval."""
    hook_added_by: Optional[str] = None
    """Command that added GPUEfficiencyHook, such as ``mmgpu run``.

    ``None`` where the config or a script names it."""
    dataset_bytes: Optional[Count] = None
    """Bytes by which this process's memory grew while it built the train loader.

    Above all what the data set parsed and keeps. ``None`` where that was not seen."""
    before_hook_s: Optional[Mapping[str, Number]] = None
    """Seconds from ``mmgpu run``'s start to building GPUEfficiencyHook, by part.

    ``imports`` until MMEngine's Runner is imported, ``config`` until one is being
    built, ``model`` until its hooks are; in no other figure."""
    rank: Count = 0
    world_size: Count = 1
    work_dir: Optional[str] = None
    config_path: Optional[str] = None
    """Absolute path of the config file that the user trains with."""
    loop: Optional[str] = None
    """Kind of train loop: ``epoch``, ``iter`` or the class name of a custom loop."""
    max_epochs: Optional[Count] = None
    max_iters: Optional[Count] = None
    start_iteration: Count = 0
    """Number of iterations done before this run; above 0 when resumed."""
    plan: Optional[TrainingPlan] = None
    """Schedule of validations and saves; ``None`` for a loop that is not MMEngine's."""
    fast_metric: Optional[str] = None
    """Way to use FastCocoMetric in the config: ``key``, ``list`` or ``no``.

    ``key`` by ``val_evaluator.type``, ``list`` by hand in a list of evaluators, ``no``
    where no CocoMetric of MMDetection has arguments that it evaluates faster; ``None``
    is unknown."""
    interval_iterations: Count = 0
    accumulative_counts: Optional[Count] = None
    optim_wrapper: Optional[str] = None
    parameters: Optional[Count] = None
    """Number of values in the model's parameters."""
    is_model_wrapped: Optional[bool] = None
    """True if a wrapper like ``MMDistributedDataParallel`` exchanges gradients.

    Between ranks; ``None`` with one rank."""
    device: str = 'cpu'
    cudnn_benchmark: Optional[bool] = None
    """True if cuDNN tries its algorithms for each new input size (``benchmark``).

    ``torch.backends.cudnn.benchmark``; ``None`` where the process uses no CUDA."""
    loader: LoaderSettings = msgspec.field(default_factory=LoaderSettings)
    worker_nice: Optional[Count] = None
    """Nice value that GPUEfficiencyHook gave the loader's workers.

    ``None`` when it left it alone."""
    optimized: Tuple[str, ...] = ()
    """Optimisations that were on when training began, by their names in ``optimize``.

    ``annotations`` is one of them if it mapped or kept any data set.

    It trains the same weights with all but ``resume``."""
    overhead: Optional[StepOverhead] = None
    """Counts of parameter groups, tensors etc. that cost host time in a train step."""
    hook_place: Optional[str] = None
    """Dotted config key of GPUEfficiencyHook, as ``default_hooks.gpu_efficiency``.

    ``None`` where it stands in none."""
    host: HostLimits = msgspec.field(default_factory=HostLimits)
    gpu: Optional[GpuDevice] = None
    versions: Mapping[str, str] = {}
    unknown: Mapping[str, str] = {}
    """Reasons why measured values are missing, by name of the measurement's source."""
    hostname: Optional[str] = None
    pid: Optional[Count] = None
    process_start: Optional[Count] = None
    """Start of the process in clock ticks after boot; tells reused ids apart."""
    memory_cgroup: Optional[str] = None
    """Folder of the control group that limits the process's memory."""
    oom_kills: Optional[Count] = None
    """Number of out-of-memory kills in the control group when training began."""
    slurm_job_id: Optional[Count] = None
    """Id of the SLURM job that the training runs in."""
    flight_recorder: Tuple[str, ...] = ()
    """Path prefixes of the dumps of NCCL's flight recorder; empty without NCCL.

    Each is followed by the rank's number."""
    slurm_end_unix_s: Optional[Number] = None
    """Latest time at which SLURM ends the job, by SLURM's clock (Unix time).

    ``None`` where the job's environment does not say (before SLURM 23.02)."""
    schema: Count = SCHEMA_VERSION
    """Version of the evidence format; a reader refuses files of any other version."""


START_PARTS = {
    'before_hook': phrase('before the hook'),
    'imports': phrase('imports'),
    'config': phrase('config'),
    'model': phrase('model'),
    'runner': phrase('Runner'),
    'train_data': phrase('training data'),
    'optimizer': phrase('optimizer'),
    'validation_data': phrase('validation data'),
    'weights': phrase('first weights'),
    'load': phrase('checkpoint'),
    'compile': phrase('compile'),
    'hooks': phrase('hooks'),
    'workers': phrase('workers'),
    'resume': phrase('resume'),
    'first_batch': phrase('first batch'),
    'first_step': phrase('first step'),
    'other': phrase('other'),
}
"""Phases of a training's start (imports, model etc.), in order, with display names.

Every second of a start is in exactly one of them.
"""


class DatasetStart(Recorded, frozen=True, kw_only=True):
    """Seconds, files and bytes of initialising one MMEngine data set on this rank."""

    kind: str
    """Class name of the data set, such as ``CocoDataset``."""
    file: Optional[str] = None
    """Path of the annotation file, or else the image folder, as the data set names it.

    ``None`` where it names neither."""
    file_bytes: Optional[Count] = None
    mount: Optional[str] = None
    """Type of the annotation file's file system, if that is on another host."""
    files: Count = 0
    """Number of files that Python opened to read the data set, each counted once.

    0 where nothing was parsed."""
    wall_s: Number
    cpu_s: Number
    """CPU seconds of the training thread while the data set was initialised."""
    read_s: Number = 0.0
    """Seconds of reading and parsing the annotations (``load_data_list``)."""
    read_cpu_s: Number = 0.0
    """CPU seconds of reading and parsing annotations (``load_data_list``)."""
    filter_s: Number = 0.0
    """Seconds of filtering the data set's samples (``filter_data``)."""
    serialise_s: Number = 0.0
    samples: Optional[Count] = None
    bytes: Optional[Count] = None
    """Bytes of the data set's serialised samples; ``None`` if not serialised."""
    is_cached: bool = False
    """True if the data set was memory-mapped from the annotation cache, not parsed."""
    is_kept: bool = False
    """True if any rank wrote the parsed data set to the cache for the next start."""
    refused: Optional[str] = None
    """Reason why ``optimize='annotations'`` did not cache the parsed data set.

    ``None`` where it did, or was not asked to."""
    is_validation: bool = False


class StartRecord(EvidenceLine, frozen=True, kw_only=True, tag='start'):
    """Seconds, by part, from the start of the process to the first iteration's end."""

    wall_s: Number
    """Seconds from process start (or else hook creation) to first iteration's end."""
    parts_s: Mapping[str, Number]
    """Seconds of each part of training's start, by a name of :data:`START_PARTS`.

    ``before_hook`` is from the start of the process to the hook's construction; below
    ``mmgpu run`` it is split into ``imports``, ``config`` and ``model``, and where it
    is unknown both are left out."""
    cpu_s: Optional[Number] = None
    """CPU seconds of the process from its start to the first iteration's end."""
    data_sets: Tuple[DatasetStart, ...] = ()
    """Data sets in the order in which they were initialised."""
    checkpoint: Optional[str] = None
    """Path or URL of the checkpoint that ``load_from`` or a resume named."""
    checkpoint_bytes: Optional[Count] = None
    """Size in bytes of the checkpoint; ``None`` if it is no file of this host."""
    parameter_lines: Count = 0
    """Number of log lines that ``paramwise_cfg`` wrote, one per parameter.

    Written while the optimizer was built."""


class StartPartRecord(EvidenceLine, frozen=True, kw_only=True, tag='start_part'):
    """Record that a phase of a training's start has begun, in case it never ends."""

    part: str
    """Name of the part of the training's start, one of :data:`START_PARTS`."""
    elapsed_s: Number
    """Seconds from building GPUEfficiencyHook to the start of the recorded phase."""
    data_set: Optional[str] = None
    """Class name of the data set that began to be initialised."""
    file: Optional[str] = None
    """File or folder that is read in the recorded part of the training's start."""
    file_bytes: Optional[Count] = None


class HostWindow(Recorded, frozen=True, kw_only=True):
    """CPU use, free memory and throttling of the whole host in one log interval."""

    throttled_s: Optional[Number] = None
    """Seconds that cgroup CPU quotas held tasks back in the interval, CPUs summed.

    It can exceed the interval. ``None`` where there is none."""
    ram_available_bytes: Optional[Count] = None
    """Bytes of available host memory at the end of the log interval."""
    shm_free_bytes: Optional[Count] = None
    """Free bytes of ``/dev/shm`` at the end of the log interval."""


class WorkersWindow(Recorded, frozen=True, kw_only=True):
    """Measurements of DataLoader workers in a log interval: CPU, batch time, memory."""

    count: Count
    """Largest number of workers at a time; 0 if the training process loads the data."""
    cpu_s: Number
    run_delay_s: Number
    """Seconds that the workers' main threads waited for a core, workers summed."""
    thread_cpu_s: Optional[Number] = None
    """CPU seconds of the workers' threads other than main threads, workers summed.

    A part of ``cpu_s``."""
    batch_time: Optional[DurationStats] = None
    """Seconds that a worker was busy with one batch, over batches that the loop took.

    ``count`` is of those that were made. ``None`` where workers were not reached."""
    batch_time_std_s: Optional[Number] = None
    """Standard deviation, in seconds, of a worker's busy time for one batch."""
    batch_cpu: Optional[DurationStats] = None
    """CPU seconds of a worker for one batch, all of its threads.

    ``count`` is of batches made. ``None`` where workers were not reached."""
    fetch_cpu_s: Optional[Number] = None
    """Mean CPU seconds of a worker for fetching one batch, sending it left out.

    ``batch_cpu`` without what sends the batch to the training process."""
    affinity_cpus: Optional[Count] = None
    """Smallest number of CPUs that any loader worker may run on."""
    opencv_threads: Optional[Count] = None
    """Number of threads OpenCV uses in a worker, as OpenCV itself reports.

    ``None`` where it is not loaded, and where nothing changed since."""
    pss_bytes: Optional[Count] = None
    """Bytes of memory of all workers, shared pages counted proportionally (PSS).

    Read every 5 minutes at most, and no more where that took 20 ms."""
    transforms_s: Mapping[str, Number] = {}
    """Seconds inside each transform by class name, summed over the timed batches.

    A transform's time leaves out those that it calls itself."""
    timed_samples: Count = 0
    """Number of samples in the batches whose transforms were timed."""


class GpuWindow(Recorded, frozen=True, kw_only=True):
    """GPU utilisation, memory, clock and temperature over a log interval.

    These fields have met NVIDIA's mock driver 550.163.01, and no real card.
    """

    samples: Count = 0
    util_pct: Optional[Number] = None
    """Time-weighted mean of the GPU utilisation by NVML, in per cent."""
    zero_pct: Optional[Number] = None
    """Share of the sampled time at 0 % GPU utilisation, in per cent."""
    sampled_s: Optional[Number] = None
    """Seconds of the log interval that are covered by GPU samples.

    Less than the interval when sampling began late or ended in it."""
    mem_used_bytes: Optional[Count] = None
    """Peak bytes of GPU memory in use by all processes, as the driver reports."""
    sm_clock_mhz: Optional[Number] = None
    """Mean clock of the GPU's multiprocessors over the samples, in MHz."""
    temperature_c: Optional[Number] = None
    """Highest temperature of the GPU, in degrees Celsius."""
    throttled_pct: Optional[Number] = None
    """Per cent of GPU samples with throttled clocks, for other reasons than idleness.

    ``power_cap`` is normal for a card at full load."""
    throttle_reasons_pct: Mapping[str, Number] = {}
    """Per cent of the GPU samples by reason for throttling, such as ``thermal``.

    Or ``power_cap``."""
    sm_active_pct: Optional[Number] = None
    """Mean per cent of the GPU's multiprocessors with work (GPM, from Hopper on)."""


class CudaMemoryWindow(Recorded, frozen=True, kw_only=True):
    """Bytes and retries of the CUDA allocator in one log interval."""

    allocated_bytes: Optional[Count] = None
    """Bytes of live tensors at the end of the log interval: a leak shows here."""
    retries: Optional[Count] = None
    """Number of CUDA allocations that failed and were retried with an empty cache."""
    inactive_bytes: Optional[Count] = None
    """Bytes in split blocks of the CUDA cache that nothing uses: fragmentation.

    When the interval ended."""


PARTS = (
    'data_wait',
    'step',
    'hooks',
    'checkpoint_save',
    'validation',
    'startup',
    'resume',
    'teardown',
    'loop',
    'other',
)
"""Names of the parts of training time; each second of it is in exactly one part."""

PART_NAMES = {
    'data_wait': phrase('data wait'),
    'step': phrase('step'),
    'hooks': phrase('hooks'),
    'checkpoint_save': phrase('saves'),
    'validation': phrase('validation'),
    'startup': phrase('start-up'),
    'resume': phrase('resume'),
    'teardown': phrase('teardown'),
    'loop': phrase('loop'),
    'other': phrase('other'),
}
"""User-visible names of the parts of training time, by their name in `PARTS`."""

UNATTRIBUTED = '(unattributed)'
"""Name under which hook time is recorded if it is not known for each hook."""


class HistoryCost(Recorded, frozen=True, kw_only=True):
    """Length and number of MMEngine's scalar histories, and the seconds to copy them.

    Measured on a copy from 10,000 values on, and again each time they have doubled.
    """

    values: Count
    """Number of values in the longest history of a scalar."""
    scalars: Count
    """Number of scalar histories that get a value in each iteration.

    Those at least half as long as the longest."""
    copy_s: Number
    """Seconds that copying all scalar histories once takes.

    As MMEngine does for each value that is added."""


class IntervalRecord(EvidenceLine, frozen=True, kw_only=True, tag='interval'):
    """Times, memory and CPU use over one log interval, or the tail of training."""

    iteration: Count
    """Number of the log interval's last iteration, 1-based, over the whole training."""
    epoch: Count
    """Number of the epoch in which the log interval ends, 1-based."""
    iterations: Count
    elapsed_s: Number
    """Seconds, by a monotonic clock, from the train loop's start to interval's end."""
    duration_s: Number
    """Wall clock seconds from the log interval's start to its end."""
    data_wait: DurationStats
    step: DurationStats
    iter: DurationStats
    """Seconds of an iteration, end to end: ``data_wait`` + step + hooks + loop.

    Saves and validation left out."""
    ledger_s: Mapping[str, Number]
    """Seconds of the log interval by part, such as ``data_wait`` or ``step``."""
    hooks_s: Mapping[str, Number] = {}
    """Seconds of hooks in the interval, by class, without saves and validations.

    The rest is MMEngine's own calling; ``(unattributed)`` stands for all hooks where a
    Runner calls them in a way of its own."""
    data_wait_cpu_s: Optional[Number] = None
    """CPU seconds of training thread or process in data waits, not epochs' first waits.

    Of the training thread, estimated from every eighth wait on average; of the whole
    process when it loads without workers."""
    first_waits: Count = 0
    """Number of waits for data that were the first of an epoch."""
    first_wait_s: Number = 0.0
    """Seconds of waiting for the first batches of epochs in the log interval."""
    images: Optional[Count] = None
    """Number of images that this rank trained on in the log interval."""
    process_own_bytes: Optional[Count] = None
    """Resident bytes of the training process, files and shared memory left out."""
    group_free_bytes: Optional[Count] = None
    """Fewest bytes free below the memory limit of any control group of the process.

    Page cache that can be given back is free."""
    worker_own_bytes: Optional[Count] = None
    """Resident bytes of all workers, files and shared memory left out.

    What forked ones share with this process counts in each."""
    worker_threads: Optional[Count] = None
    """Largest number of threads of a single worker.

    Read with one read of memory in five."""
    open_files: Optional[Count] = None
    """Number of open files of the training process.

    Read with one read of memory in five."""
    batch_bytes: Optional[Count] = None
    """Bytes of all tensors in the interval's last batch.

    Counted every 5 seconds, more often at first."""
    batch_tensors: Optional[Count] = None
    """Number of tensors in the interval's last batch.

    Each needs a file descriptor in flight."""
    small_tensors: Optional[Count] = None
    """Number of the last batch's tensors that have at most 4 KiB."""
    small_tensor_bytes: Optional[Count] = None
    """Bytes of the last batch in tensors that have at most 4 KiB each."""
    read_scalars: Optional[Count] = None
    """Number of scalars read from the GPU in the interval's last iteration.

    The host waits for each of them; in the first interval alone."""
    histories: Optional[HistoryCost] = None
    """Length, number and copying seconds of MMEngine's histories of scalars.

    ``None`` where they have not doubled since they were measured last."""
    saves: Count = 0
    process_rss_bytes: Optional[Count] = None
    """Resident bytes of the training process.

    All about memory is read every second at most."""
    process_cpu_s: Optional[Number] = None
    """CPU seconds of the training process in the interval, all its threads."""
    process_run_delay_s: Optional[Number] = None
    """Seconds of the interval that the main thread was ready and waited for a core."""
    system_cpu_pct: Optional[Number] = None
    """Busy share of all logical CPUs of the host, in per cent.

    Since it was read last: it and ``host`` every 5 seconds, more often at first."""
    largest_batch_pixels: Optional[Count] = None
    """Pixels of the interval's largest batch: images x padded height x padded width.

    As the model was given it."""
    largest_batch_height: Optional[Count] = None
    """Padded height in pixels of the images in the interval's largest batch.

    ``None`` where they are given to the model in parts of several sizes."""
    largest_batch_width: Optional[Count] = None
    new_batch_sizes: Optional[Count] = None
    """Number of padded batch sizes, in pixels, new to the run in the log interval.

    In such pixels, so portrait and landscape are one; ``None`` where that of one is
    unknown, and after 1,000 of them."""
    most_boxes: Optional[Count] = None
    """Largest number of annotated boxes in any batch of the interval."""
    host: Optional[HostWindow] = None
    workers: Optional[WorkersWindow] = None
    gpu: Optional[GpuWindow] = None
    gpu_idle_pct: Optional[Number] = None
    """Per cent of the timed iterations' time in which the GPU idled between steps.

    From the end of the hooks behind a step. Gaps inside a step are not seen."""
    gpu_idle_iterations: Count = 0
    """Number of iterations over which ``gpu_idle_pct`` was measured; 0 if none."""
    gpu_mem_peak_bytes: Optional[Count] = None
    """Peak bytes allocated by the CUDA allocator since the last interval's end."""
    gpu_mem_reserved_bytes: Optional[Count] = None
    """Peak bytes reserved by the CUDA allocator since the last interval's end."""
    cuda_memory: Optional[CudaMemoryWindow] = None
    stored_pixel_ratio: Optional[Number] = None
    """Ratio of the last batch's pixels in stored images to its pixels in training."""


SAVE_PHASES = ('serialise', 'write', 'rest')
"""Phases of a checkpoint save: serialising, writing and the rest.

``torch.save`` into a buffer; the backend's ``put``; the rest (copies to host memory,
hooks of ``before_save_checkpoint``, a strategy's own way).
"""


class SavePhase(Recorded, frozen=True, kw_only=True):
    """Seconds that the saving thread spent in one phase of a checkpoint save.

    ``wall_s = cpu_s + run_delay_s + blocked_s`` where the kernel shows it.
    """

    wall_s: Number
    cpu_s: Optional[Number] = None
    """Seconds that the saving thread ran on a core in one phase of the save."""
    run_delay_s: Optional[Number] = None
    """Seconds of the phase that the saving thread was ready and waited for a core."""
    blocked_s: Optional[Number] = None
    """Seconds that the saving thread was blocked in one phase of the save.

    It waited for storage, a lock, the GPU, or another thread."""


class SaveRecord(EvidenceLine, frozen=True, kw_only=True, tag='save'):
    """Times, size and host load of one ``save_checkpoint`` call.

    Of saves inside a save the outer one counts. A save in a thread of its own holds
    nothing up and has no record. Of a ``Runner`` rank 0 alone saves; under
    ``FlexibleRunner`` each rank that wrote something has its records.
    """

    iteration: Count
    """Number of training iterations done when the save began, in the whole training."""
    wall_s: Number
    name: Optional[str] = None
    """File name of the checkpoint without its path.

    ``None`` where the save took another way than a file backend's."""
    backend: Optional[str] = None
    """Class of the file backend that wrote the checkpoint, such as ``LocalBackend``."""
    phases: Mapping[str, SavePhase] = {}
    """Seconds of each phase of the checkpoint save, by name (:data:`SAVE_PHASES`).

    Their walls add up to ``wall_s``."""
    cpu_s: Optional[Number] = None
    """CPU seconds of the saving thread from the save's start to its end.

    ``run_delay_s`` and ``blocked_s`` are of that thread, too."""
    run_delay_s: Optional[Number] = None
    blocked_s: Optional[Number] = None
    """Seconds that the saving thread was blocked by storage, a lock or another thread.

    ``None``, as ``run_delay_s``, where the kernel shows no schedstat."""
    bytes: Optional[Count] = None
    """Bytes of the checkpoint that this rank gave the file backend to write.

    ``None`` where that was not seen, and after an error."""
    message_hub_bytes: Optional[Count] = None
    """Bytes of the checkpoint that are histories of scalars in MMEngine's message hub.

    A part of ``bytes``: 16 for each value of each scalar."""
    workers: Optional[Count] = None
    """Number of loader workers that were alive during the checkpoint save.

    ``None`` where the loader is not watched."""
    workers_busy: Optional[Number] = None
    """Mean number of workers on a core or waiting for one during the save.

    ``None`` where the kernel hides that, or one came or went meanwhile; so is
    ``workers_cpu_s``."""
    workers_cpu_s: Optional[Number] = None
    other_cpu_s: Optional[Number] = None
    """CPU seconds, during the save, of processes other than this one and its workers.

    All but this process and its workers: other ranks count, too. ``None`` where that of
    the workers or of the host is unknown."""
    memory_pressure_pct: Optional[Number] = None
    """Per cent of the save's time in which some task waited for memory (PSI ``some``).

    ``None`` where the kernel keeps none."""
    major_faults: Optional[Count] = None
    """Number of major page faults in the save: pages read from storage or swap."""
    error: Optional[str] = None
    """Class name of the exception that ended the checkpoint save."""


class AfterSaveRecord(EvidenceLine, frozen=True, kw_only=True, tag='after_save'):
    """Seconds of data wait after a save, shortened by batches loaded during the save.

    The workers go on while the loop stands in a save, and the next iterations find what
    they made.
    """

    iteration: Count
    """Number of training iterations done when the checkpoint save began."""
    iterations: Count
    """Number of iterations after the save over which data waits are summed.

    As many as batches can be made ahead, or fewer when another save, a validation, the
    end of an epoch or of the run came first; 0 when one came at once, so that nothing
    was won back."""
    waits_s: Number
    """Seconds of data wait in the ``iterations`` after the save, summed."""
    usual_wait_s: Optional[Number] = None
    """Mean seconds of data wait per iteration before the save.

    ``None`` when the iterations were fewer than the workers, whose batches come in
    bursts."""


VALIDATION_PARTS = (
    'data_wait',
    'forward',
    'process',
    'metric',
    'gather',
    'rank_wait',
    'save',
    'rest',
)
"""Parts of a validation; each second of a validation is in exactly one part.

``forward`` is the model's ``val_step``, ``process`` the evaluator's part of each batch,
``metric`` ``compute_metrics``, ``gather`` what else the evaluator does behind the last
batch (results between ranks, copies to the host), ``rank_wait`` waiting for other
ranks, ``save`` saving the best, and ``rest`` hooks and the loop. On a card the forward
pass is asynchronous: what the host waits for it behind ``val_step`` is in ``process``.
"""

VALIDATION_PART_NAMES = {
    'data_wait': phrase('data wait'),
    'forward': phrase('forward'),
    'process': phrase('process'),
    'metric': phrase('metric'),
    'gather': phrase('gathering results'),
    'rank_wait': phrase('waiting for ranks'),
    'save': phrase('saving the best'),
    'rest': phrase('rest'),
}


class ValidationRecord(EvidenceLine, frozen=True, kw_only=True, tag='validation'):
    """Times of one validation during training, with measurements of its own loader.

    A validation that an error ended has no record.
    """

    iteration: Count
    """Number of iterations of the whole training done when the validation began."""
    wall_s: Number
    """Wall clock seconds from the validation's start to its end, metrics included."""
    parts_s: Optional[Mapping[str, Number]] = None
    """Seconds of the validation by part; they add up to ``wall_s``.

    ``data_wait``, ``forward`` (``val_step``), ``process`` (the evaluator, batch by
    batch), ``metric`` (``compute_metrics``), ``gather`` (results between ranks, and to
    the host), ``rank_wait`` (for other ranks), ``save`` (of the best) and ``rest``.
    ``None`` where the parts are unknown."""
    metrics_s: Optional[Mapping[str, Number]] = None
    """Seconds of the validation in ``compute_metrics``, by class name of metric."""
    process_s: Optional[Mapping[str, Number]] = None
    """Seconds of the validation in ``process`` of the metrics, by class of metric.

    The rest of the part ``process`` is the evaluator's own."""
    iterations: Count = 0
    """Number of validation batches that iteration times are taken over.

    0 where the loop has no iterations that could be seen."""
    data_wait: Optional[DurationStats] = None
    """Seconds that a validation waits for a batch; ``None`` without iterations.

    So are ``step`` and ``iter``."""
    step: Optional[DurationStats] = None
    """Seconds of a validation step: from receiving a batch to asking for the next.

    Forward, the evaluator's part of a batch, hooks."""
    iter: Optional[DurationStats] = None
    """Seconds of a validation's iteration: ``data_wait`` + ``step``."""
    first_waits: Count = 0
    """Number of waits for data that were the first of a pass through the loader."""
    first_wait_s: Number = 0.0
    """Seconds of waits for first batches of validation's loader, with worker starts."""
    data_wait_cpu_s: Optional[Number] = None
    """CPU seconds spent in the validation's data waits, first waits left out.

    Of what loads there: the training thread, or the whole process when it loads without
    workers."""
    process_cpu_s: Optional[Number] = None
    """CPU seconds of the process in the validation's iterations, first waits left out.

    All threads."""
    whole_cpu_s: Optional[Number] = None
    """CPU seconds of the training process from the validation's start to its end."""
    run_delay_s: Optional[Number] = None
    """Seconds of the validation that the training thread waited for a core."""
    batch_bytes: Optional[Count] = None
    """Bytes of the tensors in the validation's first batch."""
    batch_tensors: Optional[Count] = None
    result_bytes: Optional[Count] = None
    """Bytes of host memory of the results that metrics kept at the last batch.

    Estimated from a sample of them; ``None`` below 1 MiB."""
    result_name: Optional[str] = None
    """Metric that kept most results, such as ``CocoMetric.results``."""
    loader: LoaderSettings = msgspec.field(default_factory=LoaderSettings)
    """Live settings of the validation's loader."""
    workers: Optional[WorkersWindow] = None
    """Measurements of the worker processes of the validation's loader."""
    train_workers_cpu_s: Optional[Number] = None
    """CPU seconds of the train loader's workers during the validation."""
    other_cpu_s: Optional[Number] = None
    """CPU seconds, in validation, of processes other than this one and its workers.

    Other ranks are included."""


class ValidationProgressRecord(
    EvidenceLine, frozen=True, kw_only=True, tag='validation_progress'
):
    """Seconds and batches of a validation so far, written while the validation runs.

    It is written when the validation begins, when each metric processes its first
    batch, gathers and computes, after 1, 2, 4, 8 and 16 s, then every 30 s or every
    twentieth of a longer validation, and when one call lasts for 1 s, 2 s, 4 s and so
    on.
    """

    iteration: Count
    """Number of training iterations done when the validation began."""
    elapsed_s: Number
    """Seconds from the validation's start to the writing of this record."""
    batches: Count
    """Number of batches that the validation had taken when the record was written."""
    batches_in_all: Optional[Count] = None
    part: str
    """Part of the validation that was running when the record was written."""
    metric: Optional[str] = None
    """Class name of the validation's running metric, with a number if several have it.
    """
    call_s: Number
    """Seconds that the validation's current call, such as a metric, has been running.

    Nothing else has begun or ended in them."""
    parts_s: Mapping[str, Number]
    """Seconds of each part of the validation up to the writing of this record."""
    metrics_s: Optional[Mapping[str, Number]] = None
    """Seconds of the validation so far in ``compute_metrics``, by class of metric."""
    process_s: Optional[Mapping[str, Number]] = None
    """Seconds of the validation so far in metrics' ``process``, by class of metric."""


MemoryPhase = Literal['start', 'train', 'validation']
"""Phase of a training: ``start``, ``train`` or ``validation``.

``start`` is from the hook's construction until training begins.
"""

MemoryBound = Literal['host', 'group']
"""Scope of a memory limit: ``host``, or ``group`` for the control group."""


class MemoryRecord(EvidenceLine, frozen=True, kw_only=True, tag='memory'):
    """Bytes of host memory at one time, by training process, workers, shared memory.

    A page that several processes share counts once: a part of it in each (PSS), and
    shared memory in none but ``shm_bytes``.
    """

    phase: MemoryPhase
    """Phase of the training: ``start``, ``train`` or ``validation``.

    ``start`` is from the hook's construction until training begins."""
    elapsed_s: Number
    """Seconds, by a monotonic clock, from the train loop's start to reading memory.

    In ``start`` since the hook was built."""
    iteration: Count = 0
    """Number of iterations of the whole training done when memory was read."""
    epoch: Count = 0
    """Number of the epoch in which memory was read, 1-based; 0 before the first."""
    bound: MemoryBound
    """Memory limit that is reached first: ``host``, or ``group`` (control group)."""
    total_bytes: Count
    """Bytes of memory that the limit ``bound`` allows."""
    used_bytes: Count
    """Bytes of memory in use by any process within the limit ``bound``.

    Page cache is free, since it can be given back."""
    shm_bytes: Optional[Count] = None
    """Bytes of shared memory: of files in ``/dev/shm``, or of a whole control group.

    The kernel counts there files in any tmpfs and memory that processes share."""
    process_bytes: Optional[Count] = None
    """Bytes of memory of the training process, files and shared memory left out.

    Results of metrics included."""
    workers: Count = 0
    """Number of workers of the train loader when memory was read."""
    worker_bytes: Optional[Count] = None
    """Bytes of memory of all train loader workers, files and shared memory left out."""
    largest_worker_bytes: Optional[Count] = None
    """Bytes of memory of the largest of the train loader workers."""
    validation_workers: Count = 0
    validation_worker_bytes: Optional[Count] = None
    """Bytes of memory of validation's workers, files and shared memory left out."""
    children: Count = 0
    """Number of the training's descendant processes that are not loader workers."""
    child_bytes: Optional[Count] = None
    """Bytes of memory of the ``children``, files and shared memory left out."""
    result_bytes: Optional[Count] = None
    """Bytes of the results that metrics keep; a part of ``process_bytes``.

    Estimated from a sample."""
    result_name: Optional[str] = None
    """Metric that keeps most results, such as ``CocoMetric.results``."""
    is_pss: bool = True
    """True if pages that processes share count proportionally in each (PSS).

    False where the kernel shows no PSS: pages that a forked worker shares with its
    parent count in each then."""
    is_low: bool = False
    """True if host memory was nearly full, or soon would be at its rate of growth."""


class UnknownRecord(EvidenceLine, frozen=True, kw_only=True, tag='unknown'):
    """Measured value that became unknown during the training, with the reason."""

    source: str
    reason: str
    iteration: Optional[Count] = None


class SourceOffRecord(EvidenceLine, frozen=True, kw_only=True, tag='source_off'):
    """Source of measurements that failed and was switched off during training."""

    source: str
    reason: str
    iteration: Optional[Count] = None


START_PART = 'start'
"""Value of ``StuckRecord.part`` if training stands still before its train loop."""


class StuckRecord(EvidenceLine, frozen=True, kw_only=True, tag='stuck'):
    """Standstill of a training: the part that hung, and the state of its processes."""

    iteration: Count
    """Number of iterations of the whole training done at the standstill."""
    part: str
    """Part of training, such as ``step``, or hook class where training stands still.

    ``start`` before the train loop."""
    validation_part: Optional[str] = None
    """Part of a validation in which training stands still; ``None`` outside of one.

    As in ``parts_s`` of a validation."""
    metric: Optional[str] = None
    """Class name of the validation's running metric, with a number if several have it.
    """
    waited_s: Number
    """Seconds from the training's last progress to the writing of this record."""
    idle_s: Optional[Number] = None
    """Seconds up to this record in which this process and its children used no core.

    In a part of a validation that computes; ``None`` where one of them used one."""
    is_over: bool = False
    """True if the standstill is over: training continued by itself.

    The other fields are left out then."""
    stack: Tuple[str, ...] = ()
    """Call stack of the worker that owed the next batch, innermost first.

    Empty when it did not answer. Where no worker owed one, of the thread that trains.
    """
    worker: Optional[Count] = None
    """Id of the DataLoader worker that owed the next batch."""
    pid: Optional[Count] = None
    """Process id of the worker that owed the next batch."""
    state: Optional[str] = None
    """Process state, as in ``ps``, of the worker that owed the next batch.

    R where it used a core meanwhile, S, D, T, Z, or X when it is gone."""
    sample: Optional[Count] = None
    """Index of the sample that was being loaded when training stood still.

    By the worker that owed the next batch; without workers, by the loop."""
    sample_s: Optional[Number] = None
    """Seconds from the start of loading the stuck sample to the writing of the record.
    """
    sample_number: Optional[Count] = None
    """Position of the sample that was being loaded within its batch, from 1.

    ``None`` where samples are not seen singly."""
    batch_samples: Optional[Count] = None
    """Number of samples in the batch that was being loaded."""
    batch_s: Optional[Number] = None
    """Seconds from the start of loading the stuck batch to the writing of the record.
    """
    image: Optional[str] = None
    """Image file of the sample that was being loaded; a long name is cut at its start.

    Known once its annotation was read."""
    call: Optional[str] = None
    """System call that the worker that owed the next batch waited in.

    In an uninterruptible sleep the kernel's function where that is known."""
    path: Optional[str] = None
    """Path of the file that the worker's system call was about."""
    mount: Optional[str] = None
    """Type of the file system that holds the file of the worker's system call."""
    alike: Count = 0
    """Number of workers that were at the same line of code as the reported worker.

    Itself included."""
    is_forked: Optional[bool] = None
    """True if workers were started by ``fork``; ``None`` where that is unknown."""
    is_alarm: bool = True
    """True if this rank's log reported the standstill.

    False if this rank only waits for others and its log has not said so: it is noted
    for them, so that they see that nobody works."""
    epoch_batches: Optional[Count] = None
    """Number of batches per epoch of this rank's loader.

    ``None`` where it has no length, and in iteration-based training."""
    batches_taken: Optional[Count] = None
    """Number of batches that the training loop has taken in the current epoch."""
    has_met: Optional[bool] = None
    """True if all ranks have ended at least one iteration together.

    And so a collective; ``None`` of a run of one rank."""
    pin_stack: Tuple[str, ...] = ()
    """Call stack of the DataLoader's thread that pins batches, innermost call first.

    Empty where there is none."""


Ending = Literal['completed', 'interrupted', 'failed']
"""Way a run ended: ``completed``, ``interrupted`` or ``failed``."""


class SparedTime(Recorded, frozen=True, kw_only=True):
    """Median CPU seconds of a call of an optimised function, original and optimised.

    CPU of the training thread for one call, medians, over a few of its first calls;
    for ``scalar_history`` of an iteration at the training's end, ``calls`` 1.
    """

    plain_s: Number
    ours_s: Number
    calls: Count
    """Number of calls timed with the optimisation, and as many without."""


class EndRecord(EvidenceLine, frozen=True, kw_only=True, tag='end'):
    """Last record of a training that was not killed; only a verdict may follow."""

    status: Ending
    """Way the training ended: ``completed``, ``interrupted`` or ``failed``.

    A run that died of a signal has no such line."""
    iterations: Count
    duration_s: Optional[Number]
    """Seconds from building the Runner to the end of the training.

    ``None`` when the ledger had been switched off."""
    ledger_s: Mapping[str, Number]
    """Seconds of the whole run by part of its time, such as ``data_wait``.

    Empty when the ledger had been switched off."""
    hooks_s: Mapping[str, Number] = {}
    """Seconds that hooks took over the whole run, by class of hook."""
    saves: Count = 0
    """Number of checkpoint saves of the run.

    Those after the last iteration are included."""
    error: Optional[str] = None
    """Class name of the exception that ended the training."""
    traceback: Tuple[str, ...] = ()
    """End of the traceback of the exception that ended training, without lines of code.

    A loader worker's is in it."""
    sample: Optional[str] = None
    """Index of the data set's sample whose loading raised an exception.

    In the training process."""
    oom_kills: Optional[Count] = None
    """Number of out-of-memory kills by the kernel in the training's control group."""
    without_gradient: Tuple[str, ...] = ()
    """Names of parameters without a gradient on this rank in data-parallel training.

    Where its exception says so."""
    spared: Mapping[str, SparedTime] = {}
    """CPU seconds per call of functions, original and optimised, by optimisation."""


TunedAction = Literal['change', 'keep', 'roll_back']
"""Action of tuning the DataLoader: ``change``, ``keep`` or ``roll_back``.

``change``: other settings from here on. ``keep`` and ``roll_back``: what the last
change gave was judged.
"""

TunedReason = Literal[
    'predicted', 'found_before', 'gain', 'loss', 'unclear', 'other_load', 'failed'
]
"""Reason of a tuning action, such as ``predicted``, ``gain`` or ``failed``.

``predicted`` to be faster, ``found_before`` by the run that this one resumes; measured
a ``gain`` or a ``loss``, ``unclear``, not judged because ``other_load`` on the host
changed meanwhile; ``failed`` to start.
"""


TunedLoader = Literal['train', 'validation']


class TunedRecord(EvidenceLine, frozen=True, kw_only=True, tag='tuned'):
    """One action of ``tune=True`` in a training: a loader change, or its judgement."""

    iteration: Count
    """Number of iterations of the whole training done when the action was taken."""
    action: TunedAction
    """Action of tuning the DataLoader: ``change``, ``keep`` or ``roll_back``.

    ``change``: the loader has other settings from here on. ``keep``: what the last
    change gave was judged. ``roll_back``: it was judged and taken back."""
    reason: TunedReason
    """Reason of the tuning action, such as ``predicted`` or ``gain``.

    Or ``found_before``, ``loss``, ``unclear``, ``other_load`` or ``failed``."""
    loader: TunedLoader = 'train'
    """Loader that was tuned: ``train`` or ``validation``."""
    old: TunedSettings
    new: TunedSettings
    """Loader settings after the action; equal to ``old`` after ``keep``."""
    is_within: bool = False
    """True if the loader was changed in mid-epoch, between two batches."""
    switch_s: Optional[Number] = None
    """Seconds for which the switch of the loader itself blocked the training thread."""
    iter_s: Optional[Number] = None
    """Mean seconds of an iteration with the loader settings before the change."""
    predicted_iter_s: Optional[Number] = None
    measured_iter_s: Optional[Number] = None
    """Mean seconds of an iteration after the change, as measured for its judgement."""
    gain_pct: Optional[float] = None
    """Share of iteration time that the change saves, per cent; below zero is a loss.

    Predicted of ``change``, measured of ``keep`` and ``roll_back``."""
    gain_low_pct: Optional[float] = None
    """Lower end of the confidence interval of ``gain_pct``, in per cent.

    It holds the truth 9 times in 10 where it is predicted, 19 in 20 where it is
    measured."""
    gain_high_pct: Optional[float] = None


Plain = Union[bool, int, float, str]
"""Value of a config setting: a bool, a number or a text."""


class RecommendedChange(Recorded, frozen=True, kw_only=True):
    """Key, old and new value of a setting that ``mmgpu recommend`` would change."""

    key: str
    """Dotted key of the config setting to change, as in ``--cfg-options``."""
    old: Optional[Plain] = None
    """Value of the setting that the run used.

    ``None`` is what PyTorch takes for a setting that only workers have, or that the
    setting is not there."""
    new: Optional[Plain] = None
    """Recommended value of the setting.

    ``None`` as in ``old``."""


class VerdictRecord(EvidenceLine, frozen=True, kw_only=True, tag='verdict'):
    """Verdict on the training from its start to now, with recommended changes.

    Rank 0 writes one in about every hour of training, so that a run that is killed has
    one, and one after the end.
    """

    verdict: str
    """Name of the verdict, such as ``data_bound_workers``."""
    confidence: str
    """Confidence of the verdict: ``high``, ``medium`` or ``low``."""
    is_final: bool = False
    """True for a verdict at the training's end, False for one during training."""
    written_unix_s: Optional[Number] = None
    """Unix time at which the verdict was written; not used for durations."""
    judged_rank: Count = 0
    """Rank whose measurements were judged: the rank that the others wait for."""
    iterations: Count
    """Number of iterations of this run that the judged rank recorded."""
    training_hours: Number
    """Hours from building the Runner to the last iteration that was judged."""
    gpu_hours: Optional[Number] = None
    """GPU hours: ``training_hours`` times the number of ranks; 0 on the CPU."""
    ledger_pct: Mapping[str, Number] = {}
    """Per cent of ``training_hours`` by part of training, such as ``data_wait``.

    Empty when the ledger had been switched off."""
    changes: Tuple[RecommendedChange, ...] = ()
    """Recommended changes of config settings; empty if none has a sure gain."""
    saved_hours: Optional[float] = None
    """Predicted hours that all changes together would have saved the training.

    ``None`` without a change, or where no gain is predicted of it."""
    saved_low_hours: Optional[float] = None
    """Lower end of the 90 % interval of ``saved_hours``; below zero is a loss.

    The interval holds the truth 9 times in 10."""
    saved_high_hours: Optional[float] = None
    slurm_job_id: Optional[Count] = None
    """Id of the SLURM job that the run ran in."""
