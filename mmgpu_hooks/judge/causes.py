"""Why a run ended badly or stands still: a page for each cause."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Cause:
    """One cause; its docstring is the page of ``mmgpu explain``."""

    name: str
    title: str
    do: tuple[str, ...]
    page: str


CAUSES: dict[str, Cause] = {}
"""Every cause by its name."""


def _cause(title: str, *do: str) -> Callable[[Callable[[], None]], None]:
    def register(page: Callable[[], None]) -> None:
        name = page.__name__
        CAUSES[name] = Cause(name, title, do, inspect.getdoc(page) or '')

    return register


@_cause(
    'The host ran out of memory',
    'Use fewer workers or prefetch_factor=2: each worker holds its own copies.',
    'Ask for more memory, or end what else runs on the host.',
)
def oom_host() -> None:
    """The kernel kills a process when no memory is left, without a word in Python.

    The console shows ``Killed``, ``DataLoader worker (pid N) is killed by signal:
    Killed`` or exit code -9 or 137. Those lines alone do not prove it: somebody may
    have sent the signal, so the answer is then "likely". The kernel's own line (``Out
    of memory: Killed process``, by ``dmesg``) or an allocation that failed proves it.

    Memory of training grows by workers (copy-on-write of Python lists in a data set
    with ``serialize_data=False``), by prefetched batches, and by results of validation.
    """


@_cause(
    "The job's memory limit was exceeded",
    'Ask for more memory (SLURM --mem, docker --memory, resources.limits.memory).',
    'Use fewer workers or prefetch_factor=2: they count towards the same limit.',
)
def oom_cgroup() -> None:
    """The control group of the job or container reached its limit; the host did not.

    SLURM says ``Detected 1 oom-kill event``, Kubernetes ``OOMKilled``, the kernel
    ``Memory cgroup out of memory``; ``memory.events`` counts it under ``oom_kill``.
    Files in ``/dev/shm`` and the page cache that is dirty count towards the limit.
    """


@_cause(
    'The GPU ran out of memory',
    'Lower batch_size or the image size, or train with AMP (--amp).',
    'Try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True where the message says that '
    'much memory is reserved but unallocated.',
    'mmgpu estimate-memory CONFIG says what fits.',
)
def oom_gpu() -> None:
    """``CUDA out of memory``: the peak of one batch did not fit.

    That peak is one batch's: the largest padded images, or most boxes (RetinaNet and
    others: ``gpu_assign_thr`` moves the assignment to the CPU). A peak that grows from
    epoch to epoch is a leak, such as a loss that is kept with its graph. Look for other
    processes on the same card, too.
    """


@_cause(
    'Shared memory (/dev/shm) is full',
    'Give the container more: docker run --shm-size=8g, or an emptyDir of medium '
    'Memory at /dev/shm in Kubernetes.',
    'Use fewer workers, prefetch_factor=2 or a smaller batch: batches pass through it.',
)
def shm_full() -> None:
    """Loader workers hand batches over through ``/dev/shm``; Docker gives it 64 MiB.

    The messages are ``Bus error. It is possible that dataloader's workers are out of
    shared memory``, ``unable to allocate shared memory(shm)``, ``No space left on
    device`` for a file ``/torch_...`` and, from NCCL, ``Error while creating shared
    memory segment``. ``df -h /dev/shm`` shows it. Recent PyTorch does not die of it:
    the batch is lost and training hangs.
    """


@_cause(
    'Too many open files',
    'Raise the limit before training: ulimit -n 65536.',
    "Or torch.multiprocessing.set_sharing_strategy('file_system'), or fewer workers.",
)
def open_files() -> None:
    """Each tensor in flight between worker and main process holds a file descriptor.

    The messages are ``received 0 items of ancdata``, ``Too many open files`` and
    ``unable to open shared memory object``. Batches of many small tensors and kept
    references to batches need most.
    """


@_cause(
    'A process was killed by a signal, and not for memory',
    'Run once with num_workers=0: the error then shows where it happens.',
    'A crash in C code (SIGSEGV, SIGABRT): try another OpenCV, decord or turbojpeg.',
)
def worker_killed() -> None:
    """A loader worker died: a crash in C code, or somebody sent it a signal.

    ``DataLoader worker (pid N) is killed by signal: Segmentation fault`` is a crash;
    ``exited unexpectedly`` alone gives no reason. SIGKILL is memory as a rule
    (``oom_host``), unless figures of memory speak against it.
    """


@_cause(
    'A loader worker is stuck',
    'Look at the sample and at the stack of the worker (py-spy dump --pid N).',
    'Is it a loop in a transform that never ends, or a file that cannot be read?',
)
def worker_stuck() -> None:
    """One worker has not ended its batch, while the others wait for theirs.

    The usual causes are an augmentation that retries for ever and a file on a dead
    mount. PyTorch says ``DataLoader timed out`` only where ``timeout`` is set.
    """


@_cause(
    'The loader workers wait for a lock that nobody will release',
    'cv2.setNumThreads(0) and OMP_NUM_THREADS=1 before the loader starts.',
    "Or start workers otherwise: env_cfg.mp_cfg.mp_start_method='spawn'.",
)
def worker_deadlock() -> None:
    """A worker inherited a locked lock over ``fork``: its owner was not copied.

    Threads of OpenCV, OpenMP, gRPC or logging that hold a lock while workers start
    leave it locked in each worker. All workers then stand in the same place, at 0 %
    CPU, from their first sample on.
    """


@_cause(
    'Loading a sample raised an exception',
    'Look at the last frame of the worker: the file or annotation of that sample.',
    'Run once with num_workers=0 to debug it.',
)
def sample_raised() -> None:
    """The data set or a transform raised, and the exception ended training.

    ``Caught X in DataLoader worker process N`` carries the traceback of the worker; its
    last line is the reason. A missing or broken image and an annotation without boxes
    are the usual ones.
    """


@_cause(
    'A rank is gone',
    'See what the rank that ended first wrote (torchrun --tee 3 --log-dir logs).',
)
def rank_lost() -> None:
    """One process of a distributed training raised or died, and the others failed.

    ``Connection closed by peer``, ``remote process exited`` and NCCL errors on the
    other ranks are consequences, and SIGTERM is how torchrun ends the healthy ones.
    The reason stands in the output of the first rank that failed.
    """


@_cause(
    'The ranks wait for one another in a collective',
    'Find the rank that is not in it: mmgpu why WORK_DIR, or py-spy dump.',
    'A slow part on one rank (validation, a save) needs a longer timeout: '
    'env_cfg.dist_cfg.timeout. TORCH_NCCL_TRACE_BUFFER_SIZE=2000 keeps its history.',
)
def rank_waits() -> None:
    """A collective timed out: at least one rank never came to it.

    ``Watchdog caught collective operation timeout`` tells who waited, not whom for. The
    rank that is missing is stuck in its loader, in a save or validation that others
    skip, or has taken another branch (a loss or parameter that not every rank has).
    """


@_cause(
    'The GPU is lost',
    'Reset or drain the card: nvidia-smi, dmesg | grep Xid; it needs an administrator.',
    'Resume on another card: tools/train.py CONFIG --resume.',
)
def gpu_lost() -> None:
    """The driver lost the card or found an error that cannot be corrected.

    Xid 79 (fallen off the bus), 48, 63, 64, 94 and 95 (ECC), 74 (NVLink), 119 and 120
    (GSP) are the card's; Xid 13, 31, 43 and 45 are a program's and do not count.
    """


@_cause(
    'The storage does not answer',
    'Look at the mount (ls, df, dmesg) and at the server; resume when it answers.',
)
def storage_stalled() -> None:
    """A network file system (NFS, Lustre, Ceph, FUSE) is stuck, or was unmounted.

    A process that waits for it is in uninterruptible sleep (state D) and cannot be
    killed. ``Stale file handle`` and ``Transport endpoint is not connected`` say that
    the mount itself is gone.
    """


@_cause(
    'The disk is full, or a quota is reached',
    'Make room, or let work_dir be elsewhere; df -h and quota -s show it.',
    'Keep fewer checkpoints: default_hooks.checkpoint.max_keep_ckpts=3.',
)
def disk_full() -> None:
    """Writing a checkpoint or a log failed.

    ``No space left on device`` and ``Disk quota exceeded`` are plain. ``torch.save``
    may hide them behind ``PytorchStreamWriter failed writing`` or ``unexpected pos``.
    For a file in ``/dev/shm`` or ``/torch_...`` it is ``shm_full``.
    """


@_cause(
    'Somebody or something ended it from outside',
    'Resume from the last checkpoint: tools/train.py CONFIG --resume.',
    'After a lost connection (SIGHUP): start it in tmux, or with nohup.',
)
def interrupted() -> None:
    """Ctrl-C, ``kill``, ``scancel`` or a closed terminal.

    A run that was killed while memory was plentiful is taken for this, too, as
    "likely": SIGKILL leaves no word in Python.
    """


@_cause(
    'The scheduler took the machine back',
    'Resume from the last checkpoint: tools/train.py CONFIG --resume.',
    'Ask for more time, or save more often: default_hooks.checkpoint.interval.',
)
def preempted() -> None:
    """Preemption, requeueing, an eviction or the job's time limit.

    SLURM says ``CANCELLED ... DUE TO PREEMPTION`` or ``DUE TO TIME LIMIT``, LSF
    ``TERM_RUNLIMIT``, Kubernetes ``Evicted``.
    """


@_cause(
    'The loss became NaN or infinite',
    'Lower the learning rate, warm up longer, or clip gradients (clip_grad).',
    'Look for boxes without area and images without boxes in the annotations.',
)
def nan_loss() -> None:
    """The loss is no number, until the end or until a check ended training.

    A single NaN that AMP skipped is not taken for it.
    """


@_cause(
    'The configuration is wrong',
    'Correct the name or value that the message shows.',
    "A class of your own needs custom_imports=dict(imports=['your.module']).",
)
def config_error() -> None:
    """A name that no registry has, an argument that no class takes, a missing file.

    Training ended before its first iteration, while MMEngine read the config or built
    what it names.
    """


@_cause(
    'torch.load refused the checkpoint',
    'Use mmengine with weights_only=False: onedl-mmengine, or torch < 2.6.',
    'Or allow the class: torch.serialization.add_safe_globals([HistoryBuffer]).',
)
def resume_refused() -> None:
    """torch >= 2.6 loads weights only, and mmengine 0.10.7 saves more than that.

    ``Weights only load failed ... HistoryBuffer`` when a run is resumed. Load only
    checkpoints that you trust otherwise.
    """


@_cause(
    'It ended badly, for a reason that nothing here shows',
    'Look at the lines shown, and for output that went elsewhere (other ranks, dmesg).',
    'mmgpu why WORK_DIR --log FILE reads evidence and console together.',
)
def unknown() -> None:
    """An exception of the program itself, a crash, or a log that was cut off.

    A wrong cause costs more than none, so none is guessed.
    """
