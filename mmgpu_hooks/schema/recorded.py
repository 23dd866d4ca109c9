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
"""Largest plausible figure: more bytes than any host has, more seconds than the
universe."""

MOST_BATCH_SIZES = 1_000
"""Most sizes of batches that are remembered; with so many, they vary."""

Count = Annotated[int, msgspec.Meta(ge=0, le=_MOST)]
"""A whole number that a measurement can give: not negative, at most 10^18."""

Number = Annotated[float, msgspec.Meta(ge=0, le=_MOST)]
"""A real number that a measurement can give: not negative, at most 10^18."""


class Recorded(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Base of all that is recorded. No record can refer to itself: hence no ``gc``."""


class EvidenceLine(Recorded, frozen=True, tag_field='kind'):
    """Base of the records that stand on a line of their own."""


class DurationStats(Recorded, frozen=True, kw_only=True):
    """Mean, median and 95th percentile of a duration, over ``count`` occurrences."""

    count: Count
    """Number of occurrences that the figures are taken over."""
    total_s: Number
    """Sum over all occurrences, s."""
    mean_s: Number
    p50_s: Number
    """Median, s."""
    p95_s: Number
    """95th percentile, s, linearly interpolated."""


class LoaderSettings(Recorded, frozen=True, kw_only=True):
    """Live attributes of a ``DataLoader``, read from the object and no file."""

    num_workers: Optional[Count] = None
    persistent_workers: Optional[bool] = None
    prefetch_factor: Optional[Count] = None
    """Batches in flight per worker; ``None`` without workers."""
    pin_memory: Optional[bool] = None
    batch_size: Optional[Count] = None
    """Batch size per rank, read from the batch sampler."""
    batches_per_epoch: Optional[Count] = None
    dataset_length: Optional[Count] = None
    image_decoder: Optional[str] = None
    """Image decoder: ``imdecode_backend`` of the pipeline (``cv2``, ``turbojpeg``,
    ``pillow``); ``None`` where no transform has one."""
    object_bytes: Optional[Count] = None
    """Memory of the Python objects that the dataset keeps, estimated from a sample;
    ``None`` below 1 MiB."""
    object_count: Optional[Count] = None
    """Number of entries in ``object_name``."""
    object_name: Optional[str] = None
    """Attribute of the dataset that holds most Python objects, such as
    ``CocoDataset.data_list``."""


class TunedSettings(Recorded, frozen=True, kw_only=True):
    """Settings of a loader that ``tune=True`` can change."""

    num_workers: Count
    prefetch_factor: Optional[Count] = None
    """Batches in flight per worker; ``None`` is PyTorch's own, and without workers."""
    persistent_workers: bool = False
    opencv_num_threads: Optional[Count] = None
    """Threads of OpenCV in each worker; ``None`` leaves them as they are."""
    worker_nice: Optional[Count] = None
    """Nice value of the workers; ``None`` leaves it as it is."""


class HostLimits(Recorded, frozen=True, kw_only=True):
    """CPUs, memory and open files that this host allows one process of the training."""

    logical_cpus: Optional[Count] = None
    affinity_cpus: Optional[Count] = None
    """CPUs that the scheduler lets this process run on."""
    unbound_cpus: Optional[Count] = None
    """CPUs of this process before a library, or code of the training, bound it to
    ``affinity_cpus``; ``None`` when nothing did."""
    bound_by: Optional[str] = None
    """Environment variables that bound the process to ``affinity_cpus``; ``None`` when
    it is unknown what did."""
    wider_thread_cpus: Optional[Count] = None
    """CPUs of another thread of the process that has more than ``affinity_cpus``, where
    nothing shows that the main thread ever had as many."""
    manager: Optional[str] = None
    """System that set the limits: ``kubernetes``, ``docker``, ``podman``, ``slurm`` or
    ``systemd``; ``None`` where nothing says so."""
    cgroup_cpu_cores: Optional[Number] = None
    """Smallest CPU quota over all cgroup ancestors; ``None`` is no quota."""
    slurm_cpus: Optional[Count] = None
    """``SLURM_CPUS_PER_TASK`` when SLURM started the process."""
    slurm_bound_cpus: Optional[Count] = None
    """CPUs in the mask that SLURM says it set for this task."""
    slurm_given_cpus: Optional[Count] = None
    """CPUs that SLURM gave this task, where ``srun`` bound it to fewer; ``None`` where
    it did not."""
    slurm_tasks: Optional[Count] = None
    """Tasks of the SLURM step on all nodes, where ``srun`` bound this one to fewer
    CPUs; ``None`` where it did not."""
    slurm_task_ranks: Optional[Count] = None
    """Ranks that share the CPUs of this rank's task; ``None`` outside of SLURM."""
    slurm_memory_bytes: Optional[Count] = None
    """Memory that SLURM gave the job on this node; ``None`` where it set no limit."""
    mended_cores: Optional[Number] = None
    """Value that ``usable_cores`` would have if ``srun`` had bound the task to all of
    its CPUs; ``None`` where it did."""
    ranks_on_host: Count = 1
    usable_cores: Optional[Number] = None
    """Smallest limit, of ``unbound_cpus`` where the process is bound. Those of the host
    are divided by the ranks on it; CPUs that SLURM gave this task alone are not."""
    ram_total_bytes: Optional[Count] = None
    ram_available_bytes: Optional[Count] = None
    cgroup_memory_bytes: Optional[Count] = None
    """Smallest memory limit over all cgroup ancestors."""
    shm_total_bytes: Optional[Count] = None
    """Size of ``/dev/shm``, through which workers send batches."""
    shm_free_bytes: Optional[Count] = None
    open_files_soft: Optional[Count] = None
    """Soft limit on open files of this process."""

    @property
    def ranks(self) -> int:
        """Ranks on this host, at least one: an edited file may say none."""
        return max(self.ranks_on_host, 1)

    @property
    def cores_had(self) -> Optional[float]:
        """Usable cores as the run had them: no more than it was bound to."""
        usable, bound = self.usable_cores, self.affinity_cpus
        if usable is None or bound is None or self.unbound_cpus is None:
            return usable
        return min(usable, bound)


class GpuDevice(Recorded, frozen=True, kw_only=True):
    """The one GPU that this rank trains on."""

    name: Optional[str] = None
    uuid: Optional[str] = None
    memory_total_bytes: Optional[Count] = None
    driver_version: Optional[str] = None


class AveragedModel(Recorded, frozen=True, kw_only=True):
    """A model that an EMA hook averages while it trains."""

    kind: str
    """Class of the averaged model, such as ``ExpMomentumEMA``."""
    tensors: Count
    """Number of tensors that an update averages."""
    interval: Optional[Count] = None
    """Iterations from one update to the next."""


class StepOverhead(Recorded, frozen=True, kw_only=True):
    """Host work of one training step, counted once as training begins."""

    optimizer: Optional[str] = None
    """Class of the optimizer; of several, of the one with most parameter groups."""
    groups: Optional[Count] = None
    """Parameter groups of that optimizer."""
    settings: Optional[Count] = None
    """Number of different settings that the parameter groups have."""
    is_fused: Optional[bool] = None
    """True if the optimizer's step is one kernel for many tensors (``fused=True``)."""
    clipped_tensors: Optional[Count] = None
    """Tensors whose gradients are clipped in each step; ``None`` without
    ``clip_grad``."""
    averages: Tuple[AveragedModel, ...] = ()
    fills_new_tensors: Optional[bool] = None
    """True if PyTorch fills each new tensor, as it does with deterministic algorithms
    (``torch.utils.deterministic.fill_uninitialized_memory``)."""
    is_compiled: Optional[bool] = None
    """True if the config compiles the model (``compile``)."""
    uses_tf32: Optional[bool] = None
    """True if convolutions may compute in TF32; ``None`` without CUDA."""


class ValInterval(Recorded, frozen=True, kw_only=True):
    """Validation interval of a training from some epoch or iteration on."""

    begin: Count
    """Epoch from which the interval holds, 1-based; 0 from the start on. In
    iteration-based training, ``begin`` and ``interval`` count iterations."""
    interval: Count


class TrainingPlan(Recorded, frozen=True, kw_only=True):
    """Schedule of validations and saves, from the loop and its CheckpointHook."""

    val_intervals: Tuple[ValInterval, ...] = ()
    """Validation intervals in order; empty without validation. It validates at the very
    end, too."""
    val_begin: Count = 1
    """Epoch, or iteration, of the first validation."""
    save_interval: Optional[Count] = None
    """Epochs or iterations from save to save; ``None`` where none is saved in between.
    Saves of the best are not planned."""
    saves_by_epoch: bool = True
    save_begin: Count = 0
    saves_last: bool = False
    """True if it saves at the very end, whatever the interval."""


class RunRecord(
    EvidenceLine, frozen=True, kw_only=True, tag='run', omit_defaults=False
):
    """First line of an evidence file: all that analysis needs to know later."""

    started_unix_s: Number
    """Start of the run by the wall clock; a label, never used for durations."""
    build_s: Number = 0.0
    """Seconds from building the Runner to its train loop: ``startup`` of the run that
    is in no interval."""
    hook_added_by: Optional[str] = None
    """Command that added the hook, such as ``mmgpu run``; ``None`` where the config or
    a script names it."""
    dataset_bytes: Optional[Count] = None
    """Memory that this process took while it built the train loader: above all what
    the data set parsed and keeps. ``None`` where that was not seen."""
    before_hook_s: Optional[Mapping[str, Number]] = None
    """Seconds before the hook was built, below ``mmgpu run``: ``imports`` until
    MMEngine's Runner is imported, ``config`` until one is being built, ``model`` until
    its hooks are; in no other figure."""
    rank: Count = 0
    world_size: Count = 1
    work_dir: Optional[str] = None
    config_path: Optional[str] = None
    """Config file that the user trains with, absolute."""
    loop: Optional[str] = None
    """Kind of loop: ``epoch``, ``iter`` or the class name of a custom one."""
    max_epochs: Optional[Count] = None
    max_iters: Optional[Count] = None
    start_iteration: Count = 0
    """Iterations done before this run: above zero when it was resumed."""
    plan: Optional[TrainingPlan] = None
    """Schedule of validations and saves; ``None`` where the loop is of another class
    than MMEngine's."""
    interval_iterations: Count = 0
    accumulative_counts: Optional[Count] = None
    optim_wrapper: Optional[str] = None
    parameters: Optional[Count] = None
    """Number of values in the model's parameters."""
    is_model_wrapped: Optional[bool] = None
    """True if a wrapper such as ``MMDistributedDataParallel`` exchanges gradients
    between ranks; ``None`` with one rank."""
    device: str = 'cpu'
    cudnn_benchmark: Optional[bool] = None
    """True if cuDNN times its algorithms for each new size of input
    (``torch.backends.cudnn.benchmark``); ``None`` where the process uses no CUDA."""
    loader: LoaderSettings = msgspec.field(default_factory=LoaderSettings)
    worker_nice: Optional[Count] = None
    """Nice value that the hook gave the loader's workers; ``None`` when it left it
    alone."""
    optimized: Tuple[str, ...] = ()
    """Optimisations that were on when training began, by the names that ``optimize``
    takes; it trains the same weights with all but ``resume``."""
    overhead: Optional[StepOverhead] = None
    """Host work of one training step."""
    hook_place: Optional[str] = None
    """Dotted key of the hook in the config, such as
    ``default_hooks.gpu_efficiency``; ``None`` where it stands in none."""
    host: HostLimits = msgspec.field(default_factory=HostLimits)
    gpu: Optional[GpuDevice] = None
    versions: Mapping[str, str] = {}
    unknown: Mapping[str, str] = {}
    """Reason why a figure is missing, by its source."""
    hostname: Optional[str] = None
    pid: Optional[Count] = None
    process_start: Optional[Count] = None
    """Start of the process in clock ticks after boot: process ids are reused."""
    memory_cgroup: Optional[str] = None
    """Folder of the control group that limits the process's memory."""
    oom_kills: Optional[Count] = None
    """Processes that the kernel had killed in the control group for memory when
    training began."""
    slurm_job_id: Optional[Count] = None
    """Id of the SLURM job that the training runs in."""
    flight_recorder: Tuple[str, ...] = ()
    """Path prefixes of the dumps of NCCL's flight recorder, each followed by the rank's
    number; empty without NCCL."""
    slurm_end_unix_s: Optional[Number] = None
    """Latest time at which SLURM ends the job, by its clock; ``None`` where the job's
    environment does not say (before SLURM 23.02)."""
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
"""Parts of a start, as they come, with their names for users: every second of a start
is in exactly one of them."""


class DatasetStart(Recorded, frozen=True, kw_only=True):
    """Time that one data set of MMEngine took to initialise, once on this rank."""

    kind: str
    """Class of the data set, such as ``CocoDataset``."""
    file: Optional[str] = None
    """Annotation file, as the data set names it; ``None`` where it has none."""
    file_bytes: Optional[Count] = None
    mount: Optional[str] = None
    """Type of the annotation file's file system, where that is on another host."""
    files: Count = 0
    """Files that Python opened to read it, each once; 0 where nothing was parsed."""
    wall_s: Number
    cpu_s: Number
    """CPU of the thread that trains, s."""
    read_s: Number = 0.0
    """Reading and parsing (``load_data_list``), s."""
    read_cpu_s: Number = 0.0
    """CPU of reading and parsing, s."""
    filter_s: Number = 0.0
    """Filtering (``filter_data``), s."""
    serialise_s: Number = 0.0
    samples: Optional[Count] = None
    bytes: Optional[Count] = None
    """Bytes of the serialised samples; ``None`` where they stay Python objects."""
    is_cached: bool = False
    """True if the data set was mapped and not parsed (``optimize='annotations'``)."""
    is_validation: bool = False


class StartRecord(EvidenceLine, frozen=True, kw_only=True, tag='start'):
    """Time of a training's start by part, to the end of its first iteration."""

    wall_s: Number
    """Sum of ``parts_s``."""
    parts_s: Mapping[str, Number]
    """Seconds by part of the start, out of :data:`START_PARTS`. ``before_hook`` is from
    the start of the process to the hook's construction; below ``mmgpu run`` it is split
    into ``imports``, ``config`` and ``model``, and where it is unknown both are left
    out."""
    cpu_s: Optional[Number] = None
    """CPU of the process to the end of the first iteration, all threads."""
    data_sets: Tuple[DatasetStart, ...] = ()
    """Data sets in the order in which they were initialised."""
    checkpoint: Optional[str] = None
    """Checkpoint that ``load_from`` or a resume named."""
    checkpoint_bytes: Optional[Count] = None
    """Size of the checkpoint; ``None`` where it is no file of this host."""
    parameter_lines: Count = 0
    """Log lines of ``paramwise_options``, one per parameter, while the optimizer was
    built."""


class StartPartRecord(EvidenceLine, frozen=True, kw_only=True, tag='start_part'):
    """A part of a start that began, in the file of a run that has no evidence yet."""

    part: str
    """Name of the part, out of :data:`START_PARTS`."""
    elapsed_s: Number
    """Seconds since the hook was built."""
    data_set: Optional[str] = None
    """Class of the data set that began to be initialised."""
    file: Optional[str] = None
    """File that is read."""
    file_bytes: Optional[Count] = None


class HostWindow(Recorded, frozen=True, kw_only=True):
    """CPU, memory and throttling of the whole host in one interval."""

    throttled_s: Optional[Number] = None
    """Time that CPU quotas of its control groups held their tasks back, added up over
    the CPUs: it can exceed the interval. ``None`` where there is none."""
    ram_available_bytes: Optional[Count] = None
    """Available memory of the host at the end of the interval."""
    shm_free_bytes: Optional[Count] = None
    """Free bytes of ``/dev/shm`` at the end of the interval."""


class WorkersWindow(Recorded, frozen=True, kw_only=True):
    """The loader's worker processes over the iterations of one interval."""

    count: Count
    """Most workers at one time that could be read; 0 where this process loads."""
    cpu_s: Number
    run_delay_s: Number
    """Seconds that the workers' main threads waited for a core."""
    thread_cpu_s: Optional[Number] = None
    """Part of ``cpu_s`` that threads other than the workers' main ones used."""
    batch_time: Optional[DurationStats] = None
    """Batch time: seconds that a worker was busy with one batch, of those that the loop
    took; ``count`` is of those that were made. ``None`` where workers were not
    reached."""
    batch_time_std_s: Optional[Number] = None
    """Standard deviation of the batch time over the batches that the loop took."""
    batch_cpu: Optional[DurationStats] = None
    """CPU of the worker for one batch, all its threads; ``count`` is of batches made.
    ``None`` where workers were not reached."""
    fetch_cpu_s: Optional[Number] = None
    """CPU of fetching one batch, mean: ``batch_cpu`` without what sends the batch to
    the training process."""
    affinity_cpus: Optional[Count] = None
    """CPUs that the most confined worker may run on."""
    opencv_threads: Optional[Count] = None
    """Threads that OpenCV uses in a worker, as it says there; ``None`` where it is not
    loaded, and where nothing changed since."""
    pss_bytes: Optional[Count] = None
    """Memory of all workers, shared pages counted in part; read every 5 minutes at
    most, and no more where that took 20 ms."""
    transforms_s: Mapping[str, Number] = {}
    """Wall clock inside each transform by class name, over the batches that were timed;
    a transform's time leaves out those that it calls itself."""
    timed_samples: Count = 0
    """Samples in the batches that were timed."""


class GpuWindow(Recorded, frozen=True, kw_only=True):
    """GPU samples of one interval, weighted by the time each stood for.

    These fields have met NVIDIA's mock driver 550.163.01, and no real card.
    """

    samples: Count = 0
    util_pct: Optional[Number] = None
    """Time-weighted NVML utilisation."""
    zero_pct: Optional[Number] = None
    """Share of the sampled time at 0 % utilisation."""
    sampled_s: Optional[Number] = None
    """Seconds that the samples stand for: less than the interval when sampling began
    late or ended in it."""
    mem_used_bytes: Optional[Count] = None
    """Largest device memory in use by any process, as the driver sees it."""
    sm_clock_mhz: Optional[Number] = None
    """Mean clock of the multiprocessors over the samples."""
    temperature_c: Optional[Number] = None
    """Highest temperature."""
    throttled_pct: Optional[Number] = None
    """Share of the samples at which something but idleness held the clocks down;
    ``power_cap`` is normal for a card at full load."""
    throttle_reasons_pct: Mapping[str, Number] = {}
    """Share of samples by reason for throttling, such as ``power_cap`` or
    ``thermal``."""
    sm_active_pct: Optional[Number] = None
    """Share of multiprocessors with work (GPM, Hopper and later)."""


class CudaMemoryWindow(Recorded, frozen=True, kw_only=True):
    """Memory of the CUDA allocator in one interval."""

    allocated_bytes: Optional[Count] = None
    """Bytes of live tensors when the interval ended: a leak shows here."""
    retries: Optional[Count] = None
    """Allocations that failed at first: the cache was emptied and they were retried."""
    inactive_bytes: Optional[Count] = None
    """Bytes in split blocks that nothing uses (fragmentation), when the interval
    ended."""


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
"""Parts of the time ledger: every second of training is in exactly one of them."""

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
"""Names of the ledger's parts for users."""

UNATTRIBUTED = '(unattributed)'
"""Name in place of a hook's where a Runner calls its hooks in a way of its own."""


class HistoryCost(Recorded, frozen=True, kw_only=True):
    """Time that MMEngine's histories of scalars cost an iteration at their length.

    Measured on a copy from 10,000 values on, and again each time they have doubled.
    """

    values: Count
    """Values in the longest history."""
    scalars: Count
    """Number of histories at least half as long as the longest: these get a value in
    each iteration."""
    copy_s: Number
    """Seconds to copy all of them once, as MMEngine does for each value that is
    added."""


class IntervalRecord(EvidenceLine, frozen=True, kw_only=True, tag='interval'):
    """Everything measured over one logging interval, and one for the tail."""

    iteration: Count
    """Last iteration of the interval, 1-based, counted over the whole training."""
    epoch: Count
    """Epoch, 1-based."""
    iterations: Count
    elapsed_s: Number
    """Seconds since the train loop began, monotonic."""
    duration_s: Number
    """Wall clock that the interval covers; equals the sum of the parts in
    ``ledger_s``."""
    data_wait: DurationStats
    step: DurationStats
    iter: DurationStats
    """Duration of an iteration: ``data_wait`` + step + hooks + loop; saves and
    validation left out."""
    ledger_s: Mapping[str, Number]
    """Seconds by part of the time ledger."""
    hooks_s: Mapping[str, Number] = {}
    """Seconds in ``hooks`` by class of hook, saves and validation left out.

    The rest is MMEngine's own calling; ``(unattributed)`` stands for all hooks where a
    Runner calls them in a way of its own."""
    data_wait_cpu_s: Optional[Number] = None
    """CPU inside ``data_wait``, first waits left out: of the training thread, estimated
    from every eighth wait on average; of the whole process when it loads without
    workers."""
    first_waits: Count = 0
    """Waits that were the first of an epoch."""
    first_wait_s: Number = 0.0
    """Sum of the first waits, with the part of it that is booked as ``startup``."""
    images: Optional[Count] = None
    """Images trained on by this rank."""
    process_own_bytes: Optional[Count] = None
    """Resident memory of the training process without pages of files and of shared
    memory."""
    group_free_bytes: Optional[Count] = None
    """Room below the memory limit of the control group that has least; page cache that
    can be given back is free."""
    worker_own_bytes: Optional[Count] = None
    """Resident memory of all workers without pages of files and of shared memory; what
    forked ones share with this process counts in each."""
    worker_threads: Optional[Count] = None
    """Threads of the worker that has most, with one read of memory in five."""
    open_files: Optional[Count] = None
    """Open files of the training process, with one read of memory in five."""
    batch_bytes: Optional[Count] = None
    """Bytes of the tensors in the interval's last batch, every 5 seconds, more often at
    first."""
    batch_tensors: Optional[Count] = None
    """Tensors in the interval's last batch: each needs a file descriptor in flight."""
    small_tensors: Optional[Count] = None
    """Tensors of that batch that have at most 4 KiB."""
    small_tensor_bytes: Optional[Count] = None
    """Bytes of the tensors that have at most 4 KiB."""
    read_scalars: Optional[Count] = None
    """Scalars that were read from the device in its last iteration, each of which the
    host waits for; in the first interval alone."""
    histories: Optional[HistoryCost] = None
    """Time that MMEngine's histories of scalars cost; ``None`` where they have not
    doubled since they were measured last."""
    saves: Count = 0
    process_rss_bytes: Optional[Count] = None
    """Resident memory of the training process; all about memory is read every second at
    most."""
    process_cpu_s: Optional[Number] = None
    """CPU of the training process, all threads, workers excluded."""
    process_run_delay_s: Optional[Number] = None
    """Seconds that the process's main thread was ready to run and waited for a core."""
    system_cpu_pct: Optional[Number] = None
    """Busy share of all logical CPUs of the host, since it was read last: it and
    ``host`` every 5 seconds, more often at first."""
    largest_batch_pixels: Optional[Count] = None
    """Images x padded height x padded width of the interval's largest batch, as the
    model was given it."""
    largest_batch_height: Optional[Count] = None
    """Height of the images of that batch, padded; ``None`` where they are given to the
    model in parts of several sizes."""
    largest_batch_width: Optional[Count] = None
    new_batch_sizes: Optional[Count] = None
    """Sizes of batches (in such pixels, so portrait and landscape are one) that no
    batch of the run had before; ``None`` where that of one is unknown, and after 1,000
    of them."""
    most_boxes: Optional[Count] = None
    """Annotated boxes of the batch that had most."""
    host: Optional[HostWindow] = None
    workers: Optional[WorkersWindow] = None
    gpu: Optional[GpuWindow] = None
    gpu_idle_pct: Optional[Number] = None
    """Share of the timed iterations in which the GPU was idle between two steps: from
    the end of the hooks behind a step. Gaps inside a step are not seen."""
    gpu_idle_iterations: Count = 0
    """Iterations that ``gpu_idle_pct`` is taken over; 0 leaves it unknown."""
    gpu_mem_peak_bytes: Optional[Count] = None
    """Largest allocator peak since the last interval."""
    gpu_mem_reserved_bytes: Optional[Count] = None
    """Largest bytes the allocator held since the last interval."""
    cuda_memory: Optional[CudaMemoryWindow] = None
    stored_pixel_ratio: Optional[Number] = None
    """Pixels of the last batch's images as stored, over those they are trained at."""


SAVE_PHASES = ('serialise', 'write', 'rest')
"""Phases of a save: ``torch.save`` into a buffer; the backend's ``put``; the rest
(copies to host memory, hooks of ``before_save_checkpoint``, a strategy's own way)."""


class SavePhase(Recorded, frozen=True, kw_only=True):
    """One phase of a save, as the saving thread went through it.

    ``wall_s = cpu_s + run_delay_s + blocked_s`` where the kernel shows it.
    """

    wall_s: Number
    cpu_s: Optional[Number] = None
    """Seconds on a core."""
    run_delay_s: Optional[Number] = None
    """Seconds ready to run, but waiting for a core."""
    blocked_s: Optional[Number] = None
    """Seconds blocked: waiting for storage, a lock, the GPU, another thread."""


class SaveRecord(EvidenceLine, frozen=True, kw_only=True, tag='save'):
    """One call of ``save_checkpoint``, first copy to last byte.

    Of saves inside a save the outer one counts. A save in a thread of its own holds
    nothing up and has no record. Of a ``Runner`` rank 0 alone saves; under
    ``FlexibleRunner`` each rank that wrote something has its records.
    """

    iteration: Count
    """Iterations done when the save began, counted over the whole training."""
    wall_s: Number
    name: Optional[str] = None
    """File name without its path; ``None`` where the save took another way than a file
    backend's."""
    backend: Optional[str] = None
    """Class of the file backend that wrote it, such as ``LocalBackend``."""
    phases: Mapping[str, SavePhase] = {}
    """Phases of the save by name, out of :data:`SAVE_PHASES`; their walls add up to
    ``wall_s``."""
    cpu_s: Optional[Number] = None
    """CPU of the saving thread; ``run_delay_s`` and ``blocked_s`` are of that thread,
    too."""
    run_delay_s: Optional[Number] = None
    blocked_s: Optional[Number] = None
    """Seconds blocked; ``None``, as ``run_delay_s``, where the kernel shows no
    schedstat."""
    bytes: Optional[Count] = None
    """Bytes that this rank gave the backend to write; ``None`` where that was not seen,
    and after an error."""
    message_hub_bytes: Optional[Count] = None
    """Bytes of ``bytes`` that are histories of scalars in MMEngine's message hub: 16
    for each value of each scalar."""
    workers: Optional[Count] = None
    """Loader workers that were alive; ``None`` where the loader is not watched."""
    workers_busy: Optional[Number] = None
    """Mean number of workers on a core or waiting for one during the save; ``None``
    where the kernel hides that, or one came or went meanwhile; so is
    ``workers_cpu_s``."""
    workers_cpu_s: Optional[Number] = None
    other_cpu_s: Optional[Number] = None
    """CPU of all processes but this one and its workers; other ranks count, too.
    ``None`` where that of the workers or of the host is unknown."""
    memory_pressure_pct: Optional[Number] = None
    """Share of the save in which some task waited for memory (PSI ``some``); ``None``
    where the kernel keeps none."""
    major_faults: Optional[Count] = None
    """Major page faults of the training process: pages read from storage or swap."""
    error: Optional[str] = None
    """Type of the exception that ended the save."""


class AfterSaveRecord(EvidenceLine, frozen=True, kw_only=True, tag='after_save'):
    """The waits for data after one save, while what was loaded meanwhile lasted.

    The workers go on while the loop stands in a save, and the next iterations find what
    they made.
    """

    iteration: Count
    """Iteration of the save."""
    iterations: Count
    """Iterations counted after the save: as many as batches can be made ahead, or fewer
    when another save, a validation, the end of an epoch or of the run came first; 0
    when one came at once, so that nothing was won back."""
    waits_s: Number
    """Sum of the waits of these iterations for data, s."""
    usual_wait_s: Optional[Number] = None
    """Mean wait for data of the iterations before, outside such spans; ``None`` when
    those were fewer than the workers, whose batches come in bursts."""


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
"""Parts of a validation; every second of it is in exactly one of them.

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
    """One validation during training, with the figures of its own loader.

    A validation that an error ended has no record.
    """

    iteration: Count
    """Iterations of training done when the validation began, counted over the whole
    training."""
    wall_s: Number
    """Wall clock of the validation, the metrics included."""
    parts_s: Optional[Mapping[str, Number]] = None
    """Seconds of ``wall_s`` by part: ``data_wait``, ``forward`` (``val_step``),
    ``process`` (the evaluator, batch by batch), ``metric`` (``compute_metrics``),
    ``gather`` (results between ranks, and to the host), ``rank_wait`` (for other
    ranks), ``save`` (of the best) and ``rest``; they add up to it. ``None`` where the
    parts are unknown."""
    metrics_s: Optional[Mapping[str, Number]] = None
    """Seconds of ``metric`` by class of metric."""
    process_s: Optional[Mapping[str, Number]] = None
    """Seconds of ``process`` by class of metric; the rest of it is the evaluator's
    own."""
    iterations: Count = 0
    """Batches that the figures of iterations are taken over; 0 where the loop has no
    iterations that could be seen."""
    data_wait: Optional[DurationStats] = None
    """Wait for a batch; ``None`` without iterations, as are ``step`` and ``iter``."""
    step: Optional[DurationStats] = None
    """Time from the batch in hand until the next is asked for: forward, the evaluator's
    part of a batch, hooks."""
    iter: Optional[DurationStats] = None
    """Duration of an iteration: ``data_wait`` + ``step``."""
    first_waits: Count = 0
    """Waits that were the first of a pass through the loader."""
    first_wait_s: Number = 0.0
    """Sum of the first waits: workers that start, and the first batch."""
    data_wait_cpu_s: Optional[Number] = None
    """CPU inside the waits but the first ones, of what loads there: the training
    thread, or the whole process when it loads without workers."""
    process_cpu_s: Optional[Number] = None
    """CPU of the training process, all threads, in the steps and those waits."""
    whole_cpu_s: Optional[Number] = None
    """CPU of the training process, all threads, in all of ``wall_s``."""
    run_delay_s: Optional[Number] = None
    """Seconds that the training thread waited for a core in all of ``wall_s``."""
    batch_bytes: Optional[Count] = None
    """Bytes of the tensors in the validation's first batch."""
    batch_tensors: Optional[Count] = None
    result_bytes: Optional[Count] = None
    """Host memory of the results that metrics kept when the last batch was done,
    estimated from a sample of them; ``None`` below 1 MiB."""
    result_name: Optional[str] = None
    """Metric that kept most results, such as ``CocoMetric.results``."""
    loader: LoaderSettings = msgspec.field(default_factory=LoaderSettings)
    """Live settings of the validation's loader."""
    workers: Optional[WorkersWindow] = None
    """Worker processes of the validation's loader."""
    train_workers_cpu_s: Optional[Number] = None
    """CPU of the train loader's workers during the validation."""
    other_cpu_s: Optional[Number] = None
    """CPU of all other processes on the host, other ranks too."""


class ValidationProgressRecord(
    EvidenceLine, frozen=True, kw_only=True, tag='validation_progress'
):
    """Progress of a validation at one time, for one that is killed.

    It is written every 30 s, or every twentieth of a longer validation, and when one
    call lasts for 3 s, 6 s, 12 s and so on.
    """

    iteration: Count
    """Iterations of training done when the validation began."""
    elapsed_s: Number
    """Seconds since the validation began."""
    batches: Count
    """Batches that the validation had taken."""
    batches_in_all: Optional[Count] = None
    part: str
    """Part of the validation that ran, as in ``parts_s`` of a ``validation``."""
    metric: Optional[str] = None
    """Metric that ran, where there is one."""
    call_s: Number
    """Seconds in which nothing else had begun or ended."""
    parts_s: Mapping[str, Number]
    """Seconds so far by part."""


MemoryPhase = Literal['start', 'train', 'validation']
"""Phase of a training; ``start`` is from the hook's construction until training
begins."""

MemoryBound = Literal['host', 'group']
"""Scope of a memory limit: ``host``, or ``group`` for the control group."""


class MemoryRecord(EvidenceLine, frozen=True, kw_only=True, tag='memory'):
    """Holders of the host's memory at one time.

    A page that several processes share counts once: a part of it in each (PSS), and
    shared memory in none but ``shm_bytes``.
    """

    phase: MemoryPhase
    """Phase: ``start``, ``train`` or ``validation``; ``start`` is from the hook's
    construction until training begins."""
    elapsed_s: Number
    """Seconds since the train loop began, monotonic; in ``start`` since the hook was
    built."""
    iteration: Count = 0
    """Iterations done, counted over the whole training."""
    epoch: Count = 0
    """Epoch, 1-based; 0 before the first."""
    bound: MemoryBound
    """Limit that is reached first: ``host``, or ``group`` for the control group's."""
    total_bytes: Count
    """Memory that the limit ``bound`` allows."""
    used_bytes: Count
    """Memory within ``bound`` in use by any process; page cache is free, since it can
    be given back."""
    shm_bytes: Optional[Count] = None
    """Files in shared memory, ``/dev/shm``: of the control group, or of the host."""
    process_bytes: Optional[Count] = None
    """Memory of the training process without files and shared memory, results of
    metrics included."""
    workers: Count = 0
    """Number of workers of the train loader."""
    worker_bytes: Optional[Count] = None
    """Memory of all workers of the train loader without files and shared memory."""
    validation_workers: Count = 0
    validation_worker_bytes: Optional[Count] = None
    """Memory of all workers of validation's loader without files and shared memory."""
    result_bytes: Optional[Count] = None
    """Results that metrics keep, estimated from a sample; in ``process_bytes``."""
    result_name: Optional[str] = None
    """Metric that keeps most results, such as ``CocoMetric.results``."""
    is_pss: bool = True
    """False where the kernel shows no PSS: pages that a forked worker shares with its
    parent count in each then."""
    is_low: bool = False
    """True if memory was nearly full, or would have been soon at its growth."""


class UnknownRecord(EvidenceLine, frozen=True, kw_only=True, tag='unknown'):
    """A figure that turned out to be unknown while the run was on, with the reason."""

    source: str
    reason: str
    iteration: Optional[Count] = None


class SourceOffRecord(EvidenceLine, frozen=True, kw_only=True, tag='source_off'):
    """A source failed and was switched off; training went on."""

    source: str
    reason: str
    iteration: Optional[Count] = None


START_PART = 'start'
"""Name of the part for a standstill before the train loop."""


class StuckRecord(EvidenceLine, frozen=True, kw_only=True, tag='stuck'):
    """A long standstill of training: the part that ran, and what its processes did."""

    iteration: Count
    """Iterations done, counted over the whole training."""
    part: str
    """Part of the time ledger, or class of the hook, that ran; ``start`` before the
    train loop."""
    validation_part: Optional[str] = None
    """Part of a validation that ran, as in ``parts_s`` of one; ``None`` outside of
    one."""
    metric: Optional[str] = None
    """Metric that ran, where there is one."""
    waited_s: Number
    """Seconds without progress."""
    is_over: bool = False
    """True if training went on by itself after that; the other fields are left out
    then."""
    stack: Tuple[str, ...] = ()
    """Call stack of the worker that owed the next batch, innermost first; empty when it
    did not answer. Where no worker owed one, of the thread that trains."""
    worker: Optional[Count] = None
    """Id of the loader's worker that owed the next batch."""
    pid: Optional[Count] = None
    """Process id of the worker that owed the next batch."""
    state: Optional[str] = None
    """State of that worker as in ``ps``: R where it used a core meanwhile, S, D, T, Z,
    or X when it is gone."""
    sample: Optional[Count] = None
    """Index of the sample that the worker was making; without workers, that the loop
    made."""
    sample_s: Optional[Number] = None
    """Seconds spent on that sample so far."""
    sample_number: Optional[Count] = None
    """Place of that sample in the batch, from 1; ``None`` where samples are not seen
    singly."""
    batch_samples: Optional[Count] = None
    """Number of samples in that batch."""
    batch_s: Optional[Number] = None
    """Seconds spent on that batch so far."""
    image: Optional[str] = None
    """Image file of that sample, once its annotation was read; of long names the
    end."""
    call: Optional[str] = None
    """System call that the worker waited in; in an uninterruptible sleep the kernel's
    function where that is known."""
    path: Optional[str] = None
    """File that the system call was about."""
    mount: Optional[str] = None
    """Type of the file system that holds the file."""
    alike: Count = 0
    """Number of workers that stood at the same line, itself included."""
    is_alarm: bool = True
    """False if this rank only waits for others and its log has not said so: it is noted
    for them, so that they see that nobody works."""
    epoch_batches: Optional[Count] = None
    """Batches that the loader of this rank has in an epoch; ``None`` where it has no
    length, and in iteration-based training."""
    batches_taken: Optional[Count] = None
    """Batches of this epoch that training has taken."""
    has_met: Optional[bool] = None
    """True if the ranks have ended an iteration together since training began, and so a
    collective; ``None`` of a run of one rank."""
    pin_stack: Tuple[str, ...] = ()
    """Call stack of the thread that pins batches, innermost first, where there is
    one."""


Ending = Literal['completed', 'interrupted', 'failed']
"""Ending of a run: ``completed``, ``interrupted`` or ``failed``."""


class SparedTime(Recorded, frozen=True, kw_only=True):
    """Time that an optimisation spares, measured in turns with the plain way.

    CPU of the training thread for one call, medians, over a few of its first calls.
    """

    plain_s: Number
    ours_s: Number
    calls: Count
    """Calls timed of each way."""


class EndRecord(EvidenceLine, frozen=True, kw_only=True, tag='end'):
    """Last record of training, unless it was killed; only a verdict may follow."""

    status: Ending
    """Ending: ``completed``, ``interrupted`` or ``failed``; a run that died of a signal
    has no such line."""
    iterations: Count
    duration_s: Optional[Number]
    """Seconds from building the Runner; ``None`` when the ledger had been switched
    off."""
    ledger_s: Mapping[str, Number]
    """Seconds by part of the time ledger over the whole run; empty when the ledger had
    been switched off."""
    hooks_s: Mapping[str, Number] = {}
    """Seconds in ``hooks`` of the whole run, by class of hook."""
    saves: Count = 0
    """Saves of the whole run, those after the last iteration included."""
    error: Optional[str] = None
    """Type of the exception that ended the training."""
    traceback: Tuple[str, ...] = ()
    """End of the traceback that Python prints, without lines of code; a loader worker's
    is in it."""
    sample: Optional[str] = None
    """Sample that the data set was asked for when loading raised in the training
    process."""
    oom_kills: Optional[Count] = None
    """Processes that the kernel has killed in the control group for memory."""
    without_gradient: Tuple[str, ...] = ()
    """Parameters that had no gradient on this rank in data-parallel training, where its
    exception says so."""
    spared: Mapping[str, SparedTime] = {}
    """Time that optimisations spared, by their name, as far as it could be measured."""


TunedAction = Literal['change', 'keep', 'roll_back']
"""Action of tuning. ``change``: other settings from here on. ``keep`` and
``roll_back``: what the last change gave was judged."""

TunedReason = Literal[
    'predicted', 'found_before', 'gain', 'loss', 'unclear', 'other_load', 'failed'
]
"""Reason of a tuning action: ``predicted`` to be faster, ``found_before`` by the run
that this one resumes; measured a ``gain`` or a ``loss``, ``unclear``, not judged
because ``other_load`` on the host changed meanwhile; ``failed`` to start."""


TunedLoader = Literal['train', 'validation']


class TunedRecord(EvidenceLine, frozen=True, kw_only=True, tag='tuned'):
    """One action of tuning while training: a change of the loader, or its judgement."""

    iteration: Count
    """Iterations done, counted over the whole training."""
    action: TunedAction
    """Action: ``change``: the loader has other settings from here on. ``keep``: what
    the last change gave was judged. ``roll_back``: it was judged and taken back."""
    reason: TunedReason
    """Reason: ``predicted``, ``found_before``, ``gain``, ``loss``, ``unclear``,
    ``other_load`` or ``failed``."""
    loader: TunedLoader = 'train'
    """Loader that was tuned: ``train`` or ``validation``."""
    old: TunedSettings
    new: TunedSettings
    """Settings from here on; of ``keep``, the same as ``old``."""
    is_within: bool = False
    """True if the change was made between two batches of a pass through the data."""
    switch_s: Optional[Number] = None
    """Seconds that the training thread spent on the switch at once."""
    iter_s: Optional[Number] = None
    """Iteration time with the settings before the change."""
    predicted_iter_s: Optional[Number] = None
    measured_iter_s: Optional[Number] = None
    """Iteration time with the settings that were judged."""
    gain_pct: Optional[float] = None
    """Iteration time saved, in per cent: predicted of ``change``, measured of ``keep``
    and ``roll_back``; below zero it is a loss."""
    gain_low_pct: Optional[float] = None
    """Lower end of the gain's interval, which holds the truth 9 times in 10 where it is
    predicted, 19 in 20 where it is measured."""
    gain_high_pct: Optional[float] = None


Plain = Union[bool, int, float, str]
"""Value of a setting."""


class RecommendedChange(Recorded, frozen=True, kw_only=True):
    """One setting that ``mmgpu recommend`` would change."""

    key: str
    """Dotted key, as in ``--cfg-options``."""
    old: Optional[Plain] = None
    """Value in use; ``None`` is what PyTorch takes for a setting that only workers
    have, or that the setting is not there."""
    new: Optional[Plain] = None
    """Recommended value; ``None`` as in ``old``."""


class VerdictRecord(EvidenceLine, frozen=True, kw_only=True, tag='verdict'):
    """Verdict on the run so far, with recommended changes; the newest counts.

    Rank 0 writes one in about every hour of training, so that a run that is killed has
    one, and one after the end.
    """

    verdict: str
    """Name of the verdict, such as ``data_bound_workers``."""
    confidence: str
    """Confidence: ``high``, ``medium`` or ``low``."""
    is_final: bool = False
    """True if training had ended; False in the verdict of each hour."""
    written_unix_s: Optional[Number] = None
    """Time of writing by the wall clock; a label, never used for durations."""
    judged_rank: Count = 0
    """Rank whose evidence was judged: the one that holds up the others."""
    iterations: Count
    """Iterations of this run that the judged rank recorded."""
    training_hours: Number
    """Hours from building the Runner to the last iteration that is judged."""
    gpu_hours: Optional[Number] = None
    """Hours of ``training_hours`` times the ranks, each of which trains on a GPU; 0 on
    the CPU."""
    ledger_pct: Mapping[str, Number] = {}
    """Share of ``training_hours`` by part of the time ledger; empty when the ledger had
    been switched off."""
    changes: Tuple[RecommendedChange, ...] = ()
    """Recommended changes; empty where none is sure enough."""
    saved_hours: Optional[float] = None
    """Predicted hours by which all changes together had shortened ``training_hours``;
    ``None`` without a change, or where no gain is predicted of it."""
    saved_low_hours: Optional[float] = None
    """Lower end of the interval of ``saved_hours``, which holds the truth 9 times in
    10; below zero it is a loss."""
    saved_high_hours: Optional[float] = None
    slurm_job_id: Optional[Count] = None
    """Id of the SLURM job that the run ran in."""
