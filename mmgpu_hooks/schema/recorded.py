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

SCHEMA_VERSION = 1
"""Version of the evidence file; a reader refuses only newer ones."""

_MOST = 10**18
"""More bytes than any host has, more seconds than the universe."""

MOST_BATCH_SIZES = 1_000
"""Most sizes of batches that are remembered; with so many, they vary."""

Count = Annotated[int, msgspec.Meta(ge=0, le=_MOST)]
"""What a measurement gives as a whole number."""

Number = Annotated[float, msgspec.Meta(ge=0, le=_MOST)]
"""What a measurement gives as a real number."""


class Recorded(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Base of all that is recorded. No record can refer to itself: hence no ``gc``."""


class EvidenceLine(Recorded, frozen=True, tag_field='kind'):
    """Base of what stands on a line of its own."""


class DurationStats(Recorded, frozen=True, kw_only=True):
    """How long something took, over ``count`` occurrences."""

    count: Count
    """Occurrences the figures are taken over."""
    total_s: Number
    """Sum of all of them."""
    mean_s: Number
    p50_s: Number
    """Median."""
    p95_s: Number
    """95th percentile, linearly interpolated."""


class LoaderSettings(Recorded, frozen=True, kw_only=True):
    """The live attributes of a ``DataLoader``, not what some file says."""

    num_workers: Optional[Count] = None
    persistent_workers: Optional[bool] = None
    prefetch_factor: Optional[Count] = None
    """Batches in flight per worker; ``None`` without workers."""
    pin_memory: Optional[bool] = None
    batch_size: Optional[Count] = None
    """Per rank, read from the batch sampler."""
    batches_per_epoch: Optional[Count] = None
    dataset_length: Optional[Count] = None
    image_decoder: Optional[str] = None
    """``imdecode_backend`` of the pipeline (``cv2``, ``turbojpeg``, ``pillow``);
    ``None`` where no transform has one."""
    object_bytes: Optional[Count] = None
    """Python objects that the dataset keeps, estimated from a sample; ``None`` below
    1 MiB."""
    object_count: Optional[Count] = None
    """Entries of the attribute that holds most of them."""
    object_name: Optional[str] = None
    """That attribute, such as ``CocoDataset.data_list``."""


class TunedSettings(Recorded, frozen=True, kw_only=True):
    """What ``tune=True`` can change of a loader."""

    num_workers: Count
    prefetch_factor: Optional[Count] = None
    """Batches in flight per worker; ``None`` is PyTorch's own, and without workers."""
    persistent_workers: bool = False
    opencv_num_threads: Optional[Count] = None
    """Threads of OpenCV in each worker; ``None`` leaves them as they are."""
    worker_nice: Optional[Count] = None
    """Likewise, the workers' nice value."""


class HostLimits(Recorded, frozen=True, kw_only=True):
    """What this host allows one process of the training to use."""

    logical_cpus: Optional[Count] = None
    affinity_cpus: Optional[Count] = None
    """CPUs that the scheduler lets this process run on."""
    unbound_cpus: Optional[Count] = None
    """The same before a library, or code of the training, bound the process to
    ``affinity_cpus``; ``None`` when nothing did."""
    bound_by: Optional[str] = None
    """Environment variables that asked for it; ``None`` when it is unknown who did."""
    wider_thread_cpus: Optional[Count] = None
    """CPUs of another thread of the process that has more than ``affinity_cpus``, where
    nothing shows that the main thread ever had as many."""
    manager: Optional[str] = None
    """Who set the limits: ``kubernetes``, ``docker``, ``podman``, ``slurm`` or
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
    """Tasks of the step on all nodes, likewise."""
    slurm_task_ranks: Optional[Count] = None
    """Ranks that share the CPUs of this rank's task; ``None`` outside of SLURM."""
    slurm_memory_bytes: Optional[Count] = None
    """Memory that SLURM gave the job on this node; ``None`` where it set no limit."""
    mended_cores: Optional[Number] = None
    """``usable_cores`` had ``srun`` bound the task to all of them, likewise."""
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
        """At least one: an edited file may say none."""
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
    """Its class, such as ``ExpMomentumEMA``."""
    tensors: Count
    """Names of tensors that an update averages."""
    interval: Optional[Count] = None
    """Iterations from one update to the next."""


class StepOverhead(Recorded, frozen=True, kw_only=True):
    """What a step has the host do, counted once as training begins."""

    optimizer: Optional[str] = None
    """Class of the optimizer; of several, of the one with most parameter groups."""
    groups: Optional[Count] = None
    """Parameter groups of that optimizer."""
    settings: Optional[Count] = None
    """Different settings that these groups have."""
    is_fused: Optional[bool] = None
    """True if its step is one kernel for many tensors (``fused=True``)."""
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
    """How often a training validates from some time on."""

    begin: Count
    """Epoch from which it holds, 1-based; 0 from the start on. In iteration-based
    training all of these are iterations."""
    interval: Count


class TrainingPlan(Recorded, frozen=True, kw_only=True):
    """When a training validates and saves, as its loop and its CheckpointHook do."""

    val_intervals: Tuple[ValInterval, ...] = ()
    """In order; empty without validation. It validates at the very end, too."""
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
    """Wall clock; a label, never used for durations."""
    build_s: Number = 0.0
    """From building the Runner to its train loop: ``startup`` of the run that is in no
    interval."""
    hook_added_by: Optional[str] = None
    """Command that added the hook, such as ``mmgpu run``; ``None`` where the config or
    a script names it."""
    dataset_bytes: Optional[Count] = None
    """Memory that this process took while it built the train loader: above all what
    the data set parsed and keeps. ``None`` where that was not seen."""
    before_hook_s: Optional[Mapping[str, Number]] = None
    """From the start of the process to the hook, below ``mmgpu run``: ``imports`` until
    MMEngine's Runner is imported, ``config`` until one is being built, ``model`` until
    its hooks are; in no other figure."""
    rank: Count = 0
    world_size: Count = 1
    work_dir: Optional[str] = None
    config_path: Optional[str] = None
    """The file the user trains with, absolute."""
    loop: Optional[str] = None
    """``epoch``, ``iter`` or the class name of a custom loop."""
    max_epochs: Optional[Count] = None
    max_iters: Optional[Count] = None
    start_iteration: Count = 0
    """Iterations done before this run: above zero when it was resumed."""
    plan: Optional[TrainingPlan] = None
    """``None`` where the loop is of another class than MMEngine's."""
    interval_iterations: Count = 0
    accumulative_counts: Optional[Count] = None
    optim_wrapper: Optional[str] = None
    parameters: Optional[Count] = None
    """How many numbers the parameters of the model are."""
    is_model_wrapped: Optional[bool] = None
    """True if a wrapper such as ``MMDistributedDataParallel`` exchanges gradients
    between ranks; ``None`` with one rank."""
    device: str = 'cpu'
    cudnn_benchmark: Optional[bool] = None
    """True if cuDNN times its algorithms for each new size of input
    (``torch.backends.cudnn.benchmark``); ``None`` where the process uses no CUDA."""
    loader: LoaderSettings = msgspec.field(default_factory=LoaderSettings)
    worker_nice: Optional[Count] = None
    """What the hook set the nice value of the loader's workers to; ``None`` when it
    left it alone."""
    optimized: Tuple[str, ...] = ()
    """Optimisations that were on when training began, by the names that ``optimize``
    takes; it trains the same weights with all but ``resume``."""
    overhead: Optional[StepOverhead] = None
    """What a step has the host do."""
    hook_place: Optional[str] = None
    """Dotted key of the hook in the config, such as
    ``default_hooks.gpu_efficiency``; ``None`` where it stands in none."""
    host: HostLimits = msgspec.field(default_factory=HostLimits)
    gpu: Optional[GpuDevice] = None
    versions: Mapping[str, str] = {}
    unknown: Mapping[str, str] = {}
    """Why a figure is missing, by source."""
    hostname: Optional[str] = None
    pid: Optional[Count] = None
    process_start: Optional[Count] = None
    """Clock ticks after boot when it began: process ids are reused."""
    memory_cgroup: Optional[str] = None
    """Folder of the control group that limits its memory."""
    oom_kills: Optional[Count] = None
    """Processes that the kernel had killed there for memory when training began."""
    slurm_job_id: Optional[Count] = None
    """SLURM's job that it runs in."""
    flight_recorder: Tuple[str, ...] = ()
    """Where NCCL's flight recorder dumps what it has: the rank's number follows each;
    empty without NCCL."""
    slurm_end_unix_s: Optional[Number] = None
    """When SLURM ends the job at the latest, by its clock; ``None`` where the job's
    environment does not say (before SLURM 23.02)."""
    schema: Count = SCHEMA_VERSION
    """A reader refuses newer ones."""


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
    """What initialising one data set of MMEngine took, once on this rank."""

    kind: str
    """Its class, such as ``CocoDataset``."""
    file: Optional[str] = None
    """Its annotation file, as the data set names it; ``None`` where it has none."""
    file_bytes: Optional[Count] = None
    mount: Optional[str] = None
    """Type of the file system that holds it, where that is on another host."""
    files: Count = 0
    """Files that Python opened to read it, each once; 0 where nothing was parsed."""
    wall_s: Number
    cpu_s: Number
    """Of the thread that trains."""
    read_s: Number = 0.0
    """Reading and parsing (``load_data_list``)."""
    read_cpu_s: Number = 0.0
    """CPU of that."""
    filter_s: Number = 0.0
    """``filter_data``."""
    serialise_s: Number = 0.0
    samples: Optional[Count] = None
    bytes: Optional[Count] = None
    """Of the serialised samples; ``None`` where they stay Python objects."""
    is_cached: bool = False
    """True if it was mapped and not parsed (``optimize='annotations'``)."""
    is_validation: bool = False


class StartRecord(EvidenceLine, frozen=True, kw_only=True, tag='start'):
    """What a training's start was spent on, to the end of its first iteration."""

    wall_s: Number
    """Sum of ``parts_s``."""
    parts_s: Mapping[str, Number]
    """By part, out of :data:`START_PARTS`. ``before_hook`` is from the start of the
    process to the hook's construction; below ``mmgpu run`` it is split into
    ``imports``, ``config`` and ``model``, and where it is unknown both are left out."""
    cpu_s: Optional[Number] = None
    """CPU of the process until then, all threads."""
    data_sets: Tuple[DatasetStart, ...] = ()
    """In the order in which they were initialised."""
    checkpoint: Optional[str] = None
    """What ``load_from`` or a resume named."""
    checkpoint_bytes: Optional[Count] = None
    """``None`` where it is no file of this host."""
    parameter_lines: Count = 0
    """Log lines of ``paramwise_options``, one a parameter, while the optimizer was
    built."""


class StartPartRecord(EvidenceLine, frozen=True, kw_only=True, tag='start_part'):
    """A part of a start that began, in the file of a run that has no evidence yet."""

    part: str
    """Out of :data:`START_PARTS`."""
    elapsed_s: Number
    """Since the hook was built."""
    data_set: Optional[str] = None
    """Class of the data set that began to be initialised."""
    file: Optional[str] = None
    """The file that is read."""
    file_bytes: Optional[Count] = None


class HostWindow(Recorded, frozen=True, kw_only=True):
    """What the whole host went through during one interval."""

    throttled_s: Optional[Number] = None
    """Time that CPU quotas of its control groups held their tasks back, added up over
    the CPUs: it can exceed the interval. ``None`` where there is none."""
    ram_available_bytes: Optional[Count] = None
    """At the end of the interval."""
    shm_free_bytes: Optional[Count] = None
    """At the end of the interval."""


class WorkersWindow(Recorded, frozen=True, kw_only=True):
    """The loader's worker processes over the iterations of one interval."""

    count: Count
    """Most workers at one time that could be read; 0 where this process loads."""
    cpu_s: Number
    run_delay_s: Number
    """What their main threads waited for a core."""
    thread_cpu_s: Optional[Number] = None
    """Of ``cpu_s``, what all their other threads used."""
    occupancy: Optional[DurationStats] = None
    """Batch time: how long a worker was busy with one batch, of those that the loop
    took; ``count`` is of those that were made. ``None`` where workers were not
    reached."""
    occupancy_std_s: Optional[Number] = None
    batch_cpu: Optional[DurationStats] = None
    """CPU of the worker for one batch, all its threads; likewise."""
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
    """Wall clock inside each transform, those that it calls itself left out, by class
    name, over the batches that were timed."""
    timed_samples: Count = 0
    """Samples those batches had."""


class GpuWindow(Recorded, frozen=True, kw_only=True):
    """GPU samples of one interval, weighted by the time each stood for.

    These fields have met NVIDIA's mock driver 550.163.01, and no real card.
    """

    samples: Count = 0
    util_pct: Optional[Number] = None
    """Time-weighted NVML utilisation."""
    zero_pct: Optional[Number] = None
    """Share of the sampled time at 0 %."""
    sampled_s: Optional[Number] = None
    """That time: less than the interval when sampling began late or ended in it."""
    mem_used_bytes: Optional[Count] = None
    """Largest device memory in use, by anyone, as the driver sees it."""
    sm_clock_mhz: Optional[Number] = None
    """Mean over the samples."""
    temperature_c: Optional[Number] = None
    """Largest."""
    throttled_pct: Optional[Number] = None
    """Share of the samples at which something but idleness held the clocks down;
    ``power_cap`` is normal for a card at full load."""
    throttle_reasons_pct: Mapping[str, Number] = {}
    """That share by reason, such as ``power_cap`` or ``thermal``."""
    sm_active_pct: Optional[Number] = None
    """Share of multiprocessors with work (GPM, Hopper and later)."""


class CudaMemoryWindow(Recorded, frozen=True, kw_only=True):
    """What the CUDA allocator went through in one interval."""

    allocated_bytes: Optional[Count] = None
    """Bytes of live tensors when the interval ended: a leak shows here."""
    retries: Optional[Count] = None
    """Allocations that failed at first: the cache was emptied and they were retried."""
    inactive_bytes: Optional[Count] = None
    """Held in split blocks that nothing uses (fragmentation), when it ended."""


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
"""Of the time ledger: every second of training is in exactly one of them."""

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
"""What the parts are called."""

UNATTRIBUTED = '(unattributed)'
"""Stands for a hook's name where a Runner calls its hooks in a way of its own."""


class HistoryCost(Recorded, frozen=True, kw_only=True):
    """What MMEngine's histories of scalars cost an iteration at their length.

    Measured on a copy from 10,000 values on, and again each time they have doubled.
    """

    values: Count
    """Of the longest history."""
    scalars: Count
    """Histories of at least half that length: these get a value in each iteration."""
    copy_s: Number
    """To copy all of them once, as MMEngine does for each value that is added."""


class IntervalRecord(EvidenceLine, frozen=True, kw_only=True, tag='interval'):
    """Everything measured over one logging interval, and one for the tail."""

    iteration: Count
    """Last iteration in it, 1-based, counted over the whole training."""
    epoch: Count
    """1-based."""
    iterations: Count
    elapsed_s: Number
    """Since the train loop began, monotonic."""
    duration_s: Number
    """Wall clock covered; equals the sum of the parts in ``ledger_s``."""
    data_wait: DurationStats
    step: DurationStats
    iter: DurationStats
    """``data_wait`` + step + hooks + loop of an iteration; saves and validation out."""
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
    """How many of the waits were the first of an epoch."""
    first_wait_s: Number = 0.0
    """Their sum, with the part of it that is booked as ``startup``."""
    images: Optional[Count] = None
    """Images trained on by this rank."""
    process_own_bytes: Optional[Count] = None
    """Resident memory of the training process without pages of files and of shared
    memory."""
    group_free_bytes: Optional[Count] = None
    """Room below the memory limit of a control group, of the one that has least; page
    cache that can be given back is free."""
    worker_own_bytes: Optional[Count] = None
    """Resident memory of all workers without pages of files and of shared memory; what
    forked ones share with this process counts in each."""
    worker_threads: Optional[Count] = None
    """Threads of the worker that has most, with one read of memory in five."""
    open_files: Optional[Count] = None
    """Of the training process, as often."""
    batch_bytes: Optional[Count] = None
    """Bytes of the tensors in the interval's last batch, every 5 seconds, more often at
    first."""
    batch_tensors: Optional[Count] = None
    """How many tensors those are: each needs a file descriptor in flight."""
    small_tensors: Optional[Count] = None
    """Of those, how many have at most 4 KiB."""
    small_tensor_bytes: Optional[Count] = None
    """Bytes of these."""
    read_scalars: Optional[Count] = None
    """Scalars that were read from the device in its last iteration, each of which the
    host waits for; in the first interval alone."""
    histories: Optional[HistoryCost] = None
    """``None`` where they have not doubled since they were measured last."""
    saves: Count = 0
    process_rss_bytes: Optional[Count] = None
    """Resident memory of the training process; all about memory is read every second at
    most."""
    process_cpu_s: Optional[Number] = None
    """CPU of the training process, all threads, workers excluded."""
    process_run_delay_s: Optional[Number] = None
    """Its main thread was ready to run and waited for a core."""
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
    """Iterations that share is taken over; 0 leaves it unknown."""
    gpu_mem_peak_bytes: Optional[Count] = None
    """Largest allocator peak since the last interval."""
    gpu_mem_reserved_bytes: Optional[Count] = None
    """Largest bytes the allocator held since the last interval."""
    cuda_memory: Optional[CudaMemoryWindow] = None
    stored_pixel_ratio: Optional[Number] = None
    """Pixels of the last batch's images as stored, over those they are trained at."""


SAVE_PHASES = ('serialise', 'write', 'rest')
"""``torch.save`` into a buffer; the backend's ``put``; what is in neither (copies to
host memory, hooks of ``before_save_checkpoint``, a strategy's own way)."""


class SavePhase(Recorded, frozen=True, kw_only=True):
    """One phase of a save, as the saving thread went through it.

    ``wall_s = cpu_s + run_delay_s + blocked_s`` where the kernel shows it.
    """

    wall_s: Number
    cpu_s: Optional[Number] = None
    """On a core."""
    run_delay_s: Optional[Number] = None
    """Ready to run, but waiting for a core."""
    blocked_s: Optional[Number] = None
    """Neither: waiting for storage, a lock, the GPU, another thread."""


class SaveRecord(EvidenceLine, frozen=True, kw_only=True, tag='save'):
    """One call of ``save_checkpoint``, first copy to last byte.

    Of saves inside a save the outer one counts. A save in a thread of its own holds
    nothing up and has no record. Of a ``Runner`` rank 0 alone saves; under
    ``FlexibleRunner`` each rank that wrote something has its records.
    """

    iteration: Count
    """Iterations done when it began, counted over the whole training."""
    wall_s: Number
    name: Optional[str] = None
    """Name of the file, without its path; ``None`` where the save took another way than
    a file backend's."""
    backend: Optional[str] = None
    """Class of the file backend that wrote it, such as ``LocalBackend``."""
    phases: Mapping[str, SavePhase] = {}
    """By name, out of :data:`SAVE_PHASES`; their walls add up to ``wall_s``."""
    cpu_s: Optional[Number] = None
    """Of the saving thread, as are the next two."""
    run_delay_s: Optional[Number] = None
    blocked_s: Optional[Number] = None
    """``None``, as ``run_delay_s``, where the kernel shows no schedstat."""
    bytes: Optional[Count] = None
    """What this rank gave the backend to write; ``None`` where that was not seen, and
    after an error."""
    message_hub_bytes: Optional[Count] = None
    """Of those, histories of scalars that MMEngine's message hub puts in: 16 bytes for
    each value of each scalar."""
    workers: Optional[Count] = None
    """Loader workers that were alive; ``None`` where the loader is not watched."""
    workers_busy: Optional[Number] = None
    """How many of them were on a core or waiting for one, mean over the save; ``None``
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
    """Of the training process, from storage or swap."""
    error: Optional[str] = None
    """Type of the exception that ended it."""


class SaveAftermathRecord(
    EvidenceLine, frozen=True, kw_only=True, tag='save_aftermath'
):
    """The waits for data after one save, while what was loaded meanwhile lasted.

    The workers go on while the loop stands in a save, and the next iterations find what
    they made.
    """

    iteration: Count
    """That of the save."""
    iterations: Count
    """Counted after it: as many as batches can be made ahead, or fewer when another
    save, a validation, the end of an epoch or of the run came first; 0 when one came at
    once, so that nothing was won back."""
    waits_s: Number
    """Their waits for data."""
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
"""Of a validation; every second of it is in exactly one of them.

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
    """One validation during training, with what its own loader did.

    A validation that an error ended has no record.
    """

    iteration: Count
    """Iterations of training done when it began, counted over the whole training."""
    wall_s: Number
    """All of it, the metrics included."""
    parts_s: Optional[Mapping[str, Number]] = None
    """Seconds of ``wall_s`` by part: ``data_wait``, ``forward`` (``val_step``),
    ``process`` (the evaluator, batch by batch), ``metric`` (``compute_metrics``),
    ``gather`` (results between ranks, and to the host), ``rank_wait`` (for other
    ranks), ``save`` (of the best) and ``rest``; they add up to it. ``None`` where they
    were not told apart."""
    metrics_s: Optional[Mapping[str, Number]] = None
    """Of ``metric``, by class of metric."""
    process_s: Optional[Mapping[str, Number]] = None
    """Of ``process``, likewise; the rest of it is the evaluator's own."""
    iterations: Count = 0
    """Batches that the figures of iterations are taken over; 0 where the loop has no
    iterations that could be seen."""
    data_wait: Optional[DurationStats] = None
    """``None`` without iterations, as are the next two."""
    step: Optional[DurationStats] = None
    """From the batch in hand until the next is asked for: forward, the evaluator's
    part of a batch, hooks."""
    iter: Optional[DurationStats] = None
    """``data_wait`` + ``step``."""
    first_waits: Count = 0
    """How many of the waits were the first of a pass through the loader."""
    first_wait_s: Number = 0.0
    """Their sum: workers that start, and the first batch."""
    data_wait_cpu_s: Optional[Number] = None
    """CPU inside the waits but the first ones, of what loads there: the training
    thread, or the whole process when it loads without workers."""
    process_cpu_s: Optional[Number] = None
    """CPU of the training process, all threads, in the steps and those waits."""
    whole_cpu_s: Optional[Number] = None
    """CPU of the training process, all threads, in all of ``wall_s``."""
    run_delay_s: Optional[Number] = None
    """What the training thread waited for a core in all of ``wall_s``."""
    batch_bytes: Optional[Count] = None
    """Bytes of the tensors in its first batch."""
    batch_tensors: Optional[Count] = None
    result_bytes: Optional[Count] = None
    """Results that metrics kept in memory of the host when its last batch was done,
    estimated from a sample of them; ``None`` below 1 MiB."""
    result_name: Optional[str] = None
    """The metric that kept most of them, such as ``CocoMetric.results``."""
    loader: LoaderSettings = msgspec.field(default_factory=LoaderSettings)
    """Live settings of its loader."""
    workers: Optional[WorkersWindow] = None
    """Its own workers."""
    train_workers_cpu_s: Optional[Number] = None
    """CPU of the train loader's workers meanwhile."""
    other_cpu_s: Optional[Number] = None
    """CPU of all other processes on the host, other ranks too."""


class ValidationProgressRecord(
    EvidenceLine, frozen=True, kw_only=True, tag='validation_progress'
):
    """Where a validation stood at one time, for one that is killed.

    It is written every 30 s, or every twentieth of a longer validation, and when one
    call lasts for 3 s, 6 s, 12 s and so on.
    """

    iteration: Count
    """Iterations of training done when the validation began."""
    elapsed_s: Number
    """Since it began."""
    batches: Count
    """That it had taken."""
    batches_in_all: Optional[Count] = None
    part: str
    """What ran, as in ``parts_s`` of a ``validation``."""
    metric: Optional[str] = None
    """The metric that it was of, where there is one."""
    call_s: Number
    """How long nothing else had begun or ended."""
    parts_s: Mapping[str, Number]
    """Seconds so far by part."""


MemoryPhase = Literal['start', 'train', 'validation']
"""``start`` is from the hook's construction until training begins."""

MemoryBound = Literal['host', 'group']
"""``host``, or ``group``: the limit of a control group."""


class MemoryRecord(EvidenceLine, frozen=True, kw_only=True, tag='memory'):
    """Who holds the host's memory, at one time.

    A page that several processes share counts once: a part of it in each (PSS), and
    shared memory in none but ``shm_bytes``.
    """

    phase: MemoryPhase
    """``start``, ``train`` or ``validation``; ``start`` is from the hook's
    construction until training begins."""
    elapsed_s: Number
    """Since the train loop began, monotonic; in ``start`` since the hook was built."""
    iteration: Count = 0
    """Iterations that were done, counted over the whole training."""
    epoch: Count = 0
    """1-based; 0 before the first."""
    bound: MemoryBound
    """What is full first: ``host``, or ``group``, the limit of a control group."""
    total_bytes: Count
    """Of that bound."""
    used_bytes: Count
    """Of it, by anyone; page cache is free, since it can be given back."""
    shm_bytes: Optional[Count] = None
    """Files in shared memory, ``/dev/shm``: of the control group, or of the host."""
    process_bytes: Optional[Count] = None
    """Memory of the training process without files and shared memory, results of
    metrics included."""
    workers: Count = 0
    """Of the train loader."""
    worker_bytes: Optional[Count] = None
    """Memory of all of these, likewise."""
    validation_workers: Count = 0
    validation_worker_bytes: Optional[Count] = None
    """The same of validation's loader."""
    result_bytes: Optional[Count] = None
    """Results that metrics keep, estimated from a sample; in ``process_bytes``."""
    result_name: Optional[str] = None
    """The metric that keeps most of them, such as ``CocoMetric.results``."""
    is_pss: bool = True
    """False where the kernel shows no PSS: pages that a forked worker shares with its
    parent count in each then."""
    is_low: bool = False
    """True if memory was nearly full, or would have been soon at its growth."""


class UnknownRecord(EvidenceLine, frozen=True, kw_only=True, tag='unknown'):
    """A figure that is unknown in this run, which showed only while it was on."""

    source: str
    reason: str
    iteration: Optional[Count] = None


class SourceOffRecord(EvidenceLine, frozen=True, kw_only=True, tag='source_off'):
    """A source failed and was switched off; training went on."""

    source: str
    reason: str
    iteration: Optional[Count] = None


START_PART = 'start'
"""Part of a standstill before the train loop."""


class StuckRecord(EvidenceLine, frozen=True, kw_only=True, tag='stuck'):
    """Training stood still for long: what ran, and what is seen of it from outside."""

    iteration: Count
    """Iterations that were done, counted over the whole training."""
    part: str
    """Of the time ledger, or the class of the hook that ran; ``start`` before the train
    loop."""
    validation_part: Optional[str] = None
    """What ran in a validation, as in ``parts_s`` of one; ``None`` outside of one."""
    metric: Optional[str] = None
    """The metric that it was of, where there is one."""
    waited_s: Number
    """How long nothing had gone on."""
    is_over: bool = False
    """True if it went on by itself after that; the other fields are left out then."""
    stack: Tuple[str, ...] = ()
    """Calls of the worker that owed the next batch, the innermost first; empty when it
    did not answer. Where no worker owed one, of the thread that trains."""
    worker: Optional[Count] = None
    """Id of the loader's worker that owed the next batch."""
    pid: Optional[Count] = None
    """Of that worker."""
    state: Optional[str] = None
    """Its state as in ``ps``: R where it used a core meanwhile, S, D, T, Z, or X when
    it is gone."""
    sample: Optional[Count] = None
    """Index of the sample that it was making; without workers, that the loop made."""
    sample_s: Optional[Number] = None
    """For how long."""
    sample_number: Optional[Count] = None
    """Its place in the batch, from 1; ``None`` where samples are not seen singly."""
    batch_samples: Optional[Count] = None
    """Samples of that batch."""
    batch_s: Optional[Number] = None
    """For how long that batch was being made."""
    image: Optional[str] = None
    """File of that sample, once its annotation was read; of long names the end."""
    call: Optional[str] = None
    """System call that it waited in; in an uninterruptible sleep the kernel's function
    where that is known."""
    path: Optional[str] = None
    """File that the call was about."""
    mount: Optional[str] = None
    """Type of the file system that holds the file."""
    alike: Count = 0
    """How many workers stood at the same line, itself included."""
    is_alarm: bool = True
    """False of a rank that waits for others and has not said so in its log: it is noted
    for them, so that they see that nobody works."""
    epoch_batches: Optional[Count] = None
    """Batches that the loader of this rank has in an epoch; ``None`` where it has no
    length, and in iteration-based training."""
    batches_taken: Optional[Count] = None
    """Of those, how many training took since the epoch began."""
    has_met: Optional[bool] = None
    """True if the ranks have ended an iteration together since training began, and so a
    collective; ``None`` of a run of one rank."""
    pin_stack: Tuple[str, ...] = ()
    """Calls of the thread that pins batches, the innermost first, where it has one."""


Ending = Literal['completed', 'interrupted', 'failed']
"""``completed``, ``interrupted`` or ``failed``."""


class SparedTime(Recorded, frozen=True, kw_only=True):
    """An optimisation in turns with the plain way, over a few of its first calls.

    CPU of the training thread for one call, medians.
    """

    plain_s: Number
    ours_s: Number
    calls: Count
    """Of each way."""


class EndRecord(EvidenceLine, frozen=True, kw_only=True, tag='end'):
    """Written when training ended in any way but a kill; only a verdict may follow."""

    status: Ending
    """``completed``, ``interrupted`` or ``failed``; a run that died of a signal has no
    such line."""
    iterations: Count
    duration_s: Optional[Number]
    """From building the Runner; ``None`` when the ledger had been switched off."""
    ledger_s: Mapping[str, Number]
    """Of the whole run; empty when the ledger had been switched off."""
    hooks_s: Mapping[str, Number] = {}
    """Seconds in ``hooks`` of the whole run, by class of hook."""
    saves: Count = 0
    """Of the whole run, those after the last iteration included."""
    error: Optional[str] = None
    """Type of the exception that ended it."""
    traceback: Tuple[str, ...] = ()
    """The end of what Python prints of it, without lines of code; a loader worker's
    is in it."""
    sample: Optional[str] = None
    """What the data set was asked for when loading raised in the training process."""
    oom_kills: Optional[Count] = None
    """Processes that the kernel has killed in the control group for memory."""
    without_gradient: Tuple[str, ...] = ()
    """Parameters that data-parallel training got no gradient of on this rank, where
    its exception says so."""
    spared: Mapping[str, SparedTime] = {}
    """What optimisations gave, by their name, as far as they could be timed."""


TunedAction = Literal['change', 'keep', 'roll_back']
"""``change``: other settings from here on. ``keep`` and ``roll_back``: what the last
change gave was judged."""

TunedReason = Literal[
    'predicted', 'found_before', 'gain', 'loss', 'unclear', 'other_load', 'failed'
]
"""Why: ``predicted`` to be faster, ``found_before`` by the run that this one resumes;
measured a ``gain`` or a ``loss``, ``unclear``, not judged because ``other_load`` on the
host changed meanwhile; ``failed`` to start."""


TunedLoader = Literal['train', 'validation']


class TunedRecord(EvidenceLine, frozen=True, kw_only=True, tag='tuned'):
    """The loader was tuned while it trained, or what that gave was judged."""

    iteration: Count
    """Iterations done, counted over the whole training."""
    action: TunedAction
    """``change``: the loader has other settings from here on. ``keep``: what the last
    change gave was judged. ``roll_back``: likewise, and it was taken back."""
    reason: TunedReason
    """``predicted``, ``found_before``, ``gain``, ``loss``, ``unclear``, ``other_load``
    or ``failed``."""
    loader: TunedLoader = 'train'
    """``train`` or ``validation``."""
    old: TunedSettings
    new: TunedSettings
    """From here on; of ``keep``, as ``old``."""
    is_within: bool = False
    """True if it was made between two batches of a pass through the data."""
    switch_s: Optional[Number] = None
    """What the training thread spent on it at once."""
    iter_s: Optional[Number] = None
    """Iteration with the settings before it."""
    predicted_iter_s: Optional[Number] = None
    measured_iter_s: Optional[Number] = None
    """Iteration with the settings that were judged."""
    gain_pct: Optional[float] = None
    """Less time: predicted of ``change``, measured of ``keep`` and ``roll_back``;
    below zero it is a loss."""
    gain_low_pct: Optional[float] = None
    """The truth is expected between low and high 9 times in 10 where it is predicted,
    19 in 20 where it is measured."""
    gain_high_pct: Optional[float] = None


Plain = Union[bool, int, float, str]
"""Value of a setting."""


class RecommendedChange(Recorded, frozen=True, kw_only=True):
    """One setting that ``mmgpu recommend`` would change."""

    key: str
    """Dotted, as in ``--cfg-options``."""
    old: Optional[Plain] = None
    """``None`` is what PyTorch takes for a setting that only workers have, or that the
    setting is not there."""
    new: Optional[Plain] = None
    """Likewise."""


class VerdictRecord(EvidenceLine, frozen=True, kw_only=True, tag='verdict'):
    """What the run so far was spent on, and what would make it shorter; the newest
    counts.

    Rank 0 writes one in about every hour of training, so that a run that is killed has
    one, and one after the end.
    """

    verdict: str
    """Its name, such as ``data_bound_workers``."""
    confidence: str
    """``high``, ``medium`` or ``low``."""
    is_final: bool = False
    """True if training had ended; else it is one of every hour."""
    written_unix_s: Optional[Number] = None
    """Wall clock; a label, never used for durations."""
    judged_rank: Count = 0
    """The rank whose evidence it is of: the one that holds up the others."""
    iterations: Count
    """Recorded of this run, by that rank."""
    training_hours: Number
    """From building the Runner to the last iteration that is judged."""
    gpu_hours: Optional[Number] = None
    """The same times the ranks, each of which trains on a GPU; 0 on the CPU."""
    ledger_pct: Mapping[str, Number] = {}
    """Share of ``training_hours`` by part of the time ledger; empty when the ledger had
    been switched off."""
    changes: Tuple[RecommendedChange, ...] = ()
    """What would be changed; empty where nothing is sure enough to be."""
    saved_hours: Optional[float] = None
    """Predicted: by how much all changes together had shortened ``training_hours``;
    ``None`` without a change, or where no gain is predicted of it."""
    saved_low_hours: Optional[float] = None
    """The truth is expected between low and high 9 times in 10; below zero it is a
    loss."""
    saved_high_hours: Optional[float] = None
    slurm_job_id: Optional[Count] = None
    """SLURM's job that it ran in."""
