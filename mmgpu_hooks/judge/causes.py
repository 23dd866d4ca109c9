"""Help pages on what makes a training fail or hang.

The first line of a page is the title, its list is what helps.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from mmgpu_hooks.schema.text import Text, phrase, worded


@dataclass(frozen=True)
class Cause:
    """Help page on one cause of a failure or hang: title, text and list of cures."""

    name: str
    title: Text
    page: str
    do: tuple[Text, ...]


CERTAINTIES = {
    'sure': phrase('sure'),
    'likely': phrase('likely'),
    'unknown': phrase('unknown'),
}
"""Words shown for how certain a cause is, by the value in records and JSON."""

CAUSES: dict[str, Cause] = {}
"""Help page of each cause of a failure or hang, by the cause's name."""


def _cause(page: Callable[[], None]) -> None:
    text, _, listed = (inspect.getdoc(page) or '').partition('\n\n- ')
    title, _, body = text.partition('.\n\n')
    do = tuple(worded(' '.join(item.split())) for item in listed.split('\n- '))
    CAUSES[page.__name__] = Cause(page.__name__, worded(title), body, do)


@_cause
def oom_host() -> None:
    """The host ran out of memory.

    The kernel kills a process when no memory is left; Python prints nothing.

    The console shows ``Killed``, ``DataLoader worker (pid N) is killed by signal:
    Killed`` or exit code -9 or 137. Those lines alone do not prove it: somebody may
    have sent the signal, so the answer is then "likely". The kernel's own line (``Out
    of memory: Killed process``, by ``dmesg``) proves it. So does an allocation that
    failed (``MemoryError``) while little was free; where much was, it is refuted.

    Memory of training grows by workers (copy-on-write of Python lists in a data set
    with ``serialize_data=False``), by prefetched batches, and by results of validation.

    - Use fewer workers or prefetch_factor=2: each worker holds its own copies.
    - Ask for more memory, or end what else runs on the host.
    """


@_cause
def oom_cgroup() -> None:
    """The job's memory limit was exceeded.

    The control group of the job or container reached its limit; the host did not.

    SLURM says ``Detected 1 oom-kill event``, Kubernetes ``OOMKilled``, the kernel
    ``Memory cgroup out of memory``; ``memory.events`` counts it under ``oom_kill``.
    Files in ``/dev/shm`` and the page cache that is dirty count towards the limit.

    - Ask for more memory (SLURM --mem, docker --memory, resources.limits.memory).
    - Use fewer workers or prefetch_factor=2: they count towards the same limit.
    """


@_cause
def oom_gpu() -> None:
    """The GPU ran out of memory.

    ``CUDA out of memory``: the peak of one batch did not fit.

    That peak is one batch's: the largest padded images, or most boxes (RetinaNet and
    others: ``gpu_assign_thr`` moves the assignment to the CPU). A peak that grows from
    epoch to epoch is a leak, such as a loss that is kept with its graph. Look for other
    processes on the same card, too.

    - Lower batch_size or the image size, or train with AMP (--amp).
    - Try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True where the message says
      that much memory is reserved but unallocated.
    - Leave env_cfg.cudnn_benchmark off: cuDNN tries algorithms with large workspaces.
    - mmgpu estimate-memory CONFIG says what fits.
    """


@_cause
def shm_full() -> None:
    """Shared memory (/dev/shm) is full.

    Loader workers send batches through ``/dev/shm``; Docker gives it 64 MiB.

    The messages are ``Bus error. It is possible that dataloader's workers are out of
    shared memory``, ``unable to allocate shared memory(shm)``, ``No space left on
    device`` for a file ``/torch_...`` and, from NCCL, ``Error while creating shared
    memory segment``. ``df -h /dev/shm`` shows it. Recent PyTorch does not die of it:
    the batch is lost and training hangs.

    - Give the container more: docker run --shm-size=8g, or an emptyDir of medium
      Memory at /dev/shm in Kubernetes; on a host of your own, mount -o
      remount,size=8G /dev/shm as root.
    - Use fewer workers, prefetch_factor=2 or a smaller batch: batches pass through
      it.
    """


@_cause
def open_files() -> None:
    """Too many open files.

    Each tensor in flight between worker and main process holds a file descriptor.

    The messages are ``received 0 items of ancdata``, ``Too many open files`` and
    ``unable to open shared memory object``. Batches of many small tensors and kept
    references to batches need most.

    - Raise the limit before training: ulimit -n 65536.
    - Or torch.multiprocessing.set_sharing_strategy('file_system'), or fewer
      workers.
    """


@_cause
def worker_killed() -> None:
    """A process was killed, and nothing shows that memory was short.

    A loader worker died: a crash in C code, or somebody sent it a signal.

    ``DataLoader worker (pid N) is killed by signal: Segmentation fault`` is a crash;
    ``exited unexpectedly`` alone gives no reason. SIGKILL is memory as a rule
    (``oom_host``), unless figures of memory speak against it. ``killed by signal:
    Terminated`` may be a person, the scheduler, or a guard of memory such as earlyoom,
    which sends SIGTERM first: the cause is then ``unknown``, or ``oom_host`` where
    figures show that memory was short.

    - Run once with num_workers=0: the error then shows where it happens.
    - A crash in C code (SIGSEGV, SIGABRT): try another version of OpenCV or decord.
    """


@_cause
def worker_stuck() -> None:
    """A loader worker is stuck.

    One worker has not ended its batch, while the others wait for theirs.

    The usual causes are an augmentation that retries for ever and a file on a dead
    mount. PyTorch says ``DataLoader timed out`` only where ``timeout`` is set.

    - Look at the sample and at the stack of the worker (py-spy dump --pid N).
    - Is it a loop in a transform that never ends, or a file that cannot be read?
    """


@_cause
def slow_loader() -> None:
    """Loading is slow, not stuck.

    The batch that is waited for is being made, sample by sample, each as slow as those
    before it.

    No iteration has ended until the first batch is whole, so a slow first batch looks
    like a standstill. The log says how many samples it has by now, what each took, and
    when the batch will be there at this rate.

    - Load one sample by hand, dataset[0], and see what takes so long: files on a slow
      mount, images much larger than trained at, a transform that waits.
    - More workers make more batches at once, and no batch faster. Smaller batches come
      sooner.
    - Where each epoch begins so: persistent_workers=True keeps what workers opened.
    """


@_cause
def worker_deadlock() -> None:
    """The loader workers wait for a lock that nobody will release.

    A worker inherited a locked lock over ``fork``: its owner was not copied.

    Threads of OpenCV, OpenMP, gRPC or logging that hold a lock while workers start
    leave it locked in each worker. All workers then stand in the same place, at 0 %
    CPU, from their first sample on.

    - cv2.setNumThreads(0) and OMP_NUM_THREADS=1 before the loader starts.
    - Or start workers otherwise: env_cfg.mp_cfg.mp_start_method='spawn'.
    """


@_cause
def sample_raised() -> None:
    """Loading a sample raised an exception.

    The data set or a transform raised, and the exception ended training.

    ``Caught X in DataLoader worker process N`` carries the traceback of the worker; its
    last line is the reason. A missing or broken image and an annotation without boxes
    are the usual ones.

    - Look at the last frame of the worker: the file or annotation of that sample.
    - Run once with num_workers=0 to debug it.
    """


@_cause
def pin_thread_lost() -> None:
    """The thread that pins batches in memory has ended.

    An exception ended it, and the training loop found no thread to wait for.

    ``Pin memory thread exited unexpectedly`` names no reason: that is the traceback
    of ``Thread-N (_pin_memory_loop)`` above it. A worker that was killed in the middle
    of a batch (``ConnectionResetError``, ``not enough values to unpack``), too many
    open files and memory that cannot be pinned are the usual ones.

    - Look at the traceback of the thread, and at what killed a worker before it.
    - pin_memory=False in the loader goes without the thread.
    - Many open files: ulimit -n 65536.
    """


@_cause
def unused_parameters() -> None:
    """DistributedDataParallel waits for gradients of parameters that took no part.

    ``Expected to have finished reduction in the prior iteration``: the loss of the
    last iteration did not depend on each parameter that requires a gradient.

    A branch, head or stage that only some batches use, a part that is frozen in
    ``forward`` alone, or an output that no loss takes does that. On one GPU the same
    model trains, since nobody waits for the gradients.

    The rank raises at its next step; the others say ``Connection closed by peer`` two
    seconds later. The evidence of the rank that raised names the parameters.

    - Find them: mmgpu why WORK_DIR, or TORCH_DISTRIBUTED_DEBUG=DETAIL, names them.
    - Use them in the loss, or freeze them with requires_grad=False.
    - Or find_unused_parameters=True at the top of MMEngine's config; it costs a walk
      over the graph in each iteration.
    """


@_cause
def device_assert() -> None:
    """A check in a CUDA kernel failed: an index is out of range.

    ``device-side assert triggered``; the traceback shows a later call, not the kernel.

    In a detector it is a label that is no class of the head: ``num_classes`` is
    smaller than the annotations need, or their ids do not begin at 0. The line
    ``Assertion `t >= 0 && t < n_classes` failed`` above it names the kernel. The
    process cannot use the card any more.

    - Compare num_classes with metainfo.classes and the annotations' categories.
    - CUDA_LAUNCH_BLOCKING=1, or one iteration on the CPU, shows the line at fault.
    """


@_cause
def port_in_use() -> None:
    """The port is in use.

    Another process listens on the address that a server of this one needs.

    As a rule it is torch.distributed's port (29500 unless you name one): a second
    training on the host, or ranks of the last one that are still alive.

    - Name another: PORT=29501 tools/dist_train.sh, torchrun --master-port=29501.
    - torchrun --standalone takes a free one, for a single host.
    - ss -ltnp shows who has it: end the ranks that were left.
    """


@_cause
def rank_lost() -> None:
    """A rank is gone.

    One process of a distributed training raised or died, and the others failed.

    ``Connection closed by peer``, ``remote process exited`` and NCCL errors on the
    other ranks are consequences, and SIGTERM is how torchrun ends the healthy ones.
    The reason stands in the output of the first rank that failed.

    - See what the rank that ended first wrote (torchrun --tee 3 --log-dir logs).
    """


@_cause
def rank_waits() -> None:
    """The ranks wait for one another in a collective.

    A collective timed out: at least one rank never came to it.

    ``Watchdog caught collective operation timeout`` names who waited, not for whom. The
    rank that is missing is stuck in its loader, in a save or validation that others
    skip, or has taken another branch (a loss or parameter that not every rank has).

    - Find the rank that is not in it: mmgpu why WORK_DIR, or py-spy dump.
    - A slow part on one rank (validation, a save) needs a longer timeout:
      env_cfg.dist_cfg.timeout.
    - With NCCL, for the next time: TORCH_NCCL_TRACE_BUFFER_SIZE=2000
      TORCH_NCCL_DUMP_ON_TIMEOUT=1. mmgpu why WORK_DIR then reads what its flight
      recorder dumped, and names the rank that is behind.
    """


@_cause
def uneven_inputs() -> None:
    """The ranks train different numbers of batches.

    One rank has come to the end of its batches, and the others wait for it in the next.

    A sampler that gives ranks parts of unequal length, ``drop_last`` on some ranks
    alone, a data set that is cut into shards by hand or an iterable one does that. What
    the short rank meets next (a validation, a save with a barrier, the end of training)
    never pairs with the gradients of the others. Where the next epoch's gradients pair
    with them nobody stands: the ranks then mix their epochs, and ``mmgpu report`` has a
    finding (MG204).

    - Give each rank as many batches: MMEngine's DefaultSampler pads with round_up=True.
    - Shards of your own: cut all to the shortest, or repeat samples; set drop_last on
      every rank.
    - Iterable data sets: train by iterations (by_epoch=False) with max_iters.
    """


@_cause
def work_on_one_rank() -> None:
    """One rank does work that the others have no part in.

    The others stand in their next collective until it is done, or until that times out.

    Checkpoints, metrics over collected results, ``wandb`` and uploads run on rank 0
    alone. That is no fault while it takes less than the time-out of a collective: 10
    minutes with NCCL (30 before torch 2.2), 30 with gloo.

    - Longer than it takes: env_cfg.dist_cfg.timeout=7200 (seconds).
    - Or do it on all ranks, seldom, or after training; a file system that is slow for
      one is found by mmgpu save-bench.
    """


@_cause
def rank_never_came() -> None:
    """The first collective never ended.

    A rank did not come to it, or cannot be reached over the network.

    ``Timed out after N seconds waiting for clients. 1/2 clients joined`` and a NCCL
    time-out with ``SeqNum=1`` say so. A rank that died or parses its data set for long
    does not come; where all came, it is the network: an interface that NCCL took by
    mistake (docker0, virbr0), a firewall, or another address of the master.

    - See whether each rank started, and what the missing one wrote.
    - NCCL_DEBUG=INFO first: it shows the interface that each rank took.
    - Then NCCL_SOCKET_IFNAME=eth0, by the name of yours (GLOO_SOCKET_IFNAME for gloo).
    - NCCL_P2P_DISABLE=1 only to find out: it slows every step.
    """


@_cause
def gpu_lost() -> None:
    """The GPU is lost.

    The driver lost the card or found an error that cannot be corrected.

    Xid 79 (fallen off the bus), 48, 63, 64, 94 and 95 (ECC), 74 (NVLink), 119 and 120
    (GSP) are the card's; Xid 13, 31, 43 and 45 are a program's and do not count.

    - Reset or drain the card: nvidia-smi, dmesg | grep Xid; it needs an
      administrator.
    - Resume on another card: tools/train.py CONFIG --resume.
    """


@_cause
def no_gpu() -> None:
    """No GPU can be used.

    There is no NVIDIA driver, no card is visible, or torch was built without CUDA.

    ``Found no NVIDIA driver on your system``, ``No CUDA GPUs are available`` or ``Torch
    not compiled with CUDA enabled``, where something asks for a card: several ranks,
    a checkpoint, or a config that names ``cuda``.

    - See which cards there are: nvidia-smi, mmgpu doctor.
    - In a container: docker run --gpus all. In a SLURM job: --gres=gpu:1.
    - Look for an empty CUDA_VISIBLE_DEVICES, and for a torch without CUDA.
    """


@_cause
def storage_stalled() -> None:
    """The storage does not answer.

    A network file system (NFS, Lustre, Ceph, FUSE) is stuck, or was unmounted.

    A process that waits for it is in uninterruptible sleep (state D) and cannot be
    killed. ``Stale file handle`` and ``Transport endpoint is not connected`` say that
    the mount itself is gone; ``[Errno 5] Input/output error`` that a read or write
    failed, on the network or on the disk.

    - Look at the mount (ls, df, dmesg) and at the server; resume when it answers.
    """


@_cause
def disk_full() -> None:
    """The disk is full, or a quota is reached.

    Writing a checkpoint or a log failed.

    ``No space left on device`` and ``Disk quota exceeded`` are plain. ``torch.save``
    may hide them behind ``PytorchStreamWriter failed writing`` or ``unexpected pos``.
    For a file in ``/dev/shm`` or ``/torch_...`` it is ``shm_full``.

    - Make room, or let work_dir be elsewhere; df -h and quota -s show it.
    - Keep fewer checkpoints: default_hooks.checkpoint.max_keep_ckpts=3.
    """


@_cause
def interrupted() -> None:
    """Somebody or something ended the run from outside.

    Ctrl-C, ``kill``, ``scancel`` or a closed terminal (``[Errno 5] Input/output
    error`` while a line of the log or a progress bar is written).

    A run that was killed while memory was plentiful is taken for this, too, as
    "likely": Python prints nothing on SIGKILL.

    - Resume from the last checkpoint: tools/train.py CONFIG --resume.
    - After a lost connection (SIGHUP): start it in tmux, or with nohup.
    """


@_cause
def preempted() -> None:
    """The scheduler took the machine back.

    Preemption, requeueing, an eviction or the job's time limit.

    SLURM says ``CANCELLED ... DUE TO PREEMPTION`` or ``DUE TO TIME LIMIT``, Kubernetes
    ``Evicted``.

    - Resume from the last checkpoint: tools/train.py CONFIG --resume.
    - Ask for more time, or save more often: default_hooks.checkpoint.interval.
    """


@_cause
def nan_loss() -> None:
    """The loss became NaN or infinite.

    The loss is no number, until the end or until a check ended training.

    A single NaN that AMP skipped is not taken for it.

    - Lower the learning rate, warm up longer, or clip gradients (clip_grad).
    - Look for boxes without area and images without boxes in the annotations.
    """


@_cause
def config_error() -> None:
    """The configuration is wrong.

    A name that no registry has, an argument that no class takes, a missing file.

    Training ended before its first iteration, while MMEngine read the config or built
    what it names. ``None is not a callable object`` is an optimizer whose name no
    registry has; ``Class values must be smaller than num_classes`` is a head with fewer
    classes than the annotations. ``need at least one array to concatenate`` and
    ``num_samples=0`` are a data set without an image: as a rule no category of the
    annotations has a name of ``metainfo.classes``.

    - Correct the name or value that the message shows.
    - A class of your own needs custom_imports=dict(imports=['your.module']).
    """


@_cause
def package_missing() -> None:
    """A Python package is missing in this environment.

    ``ModuleNotFoundError: No module named 'mmdet'``.

    The Python that trains does not have it: it is another one than the package was
    installed into, or another node. ``pkg_resources`` left setuptools with version 81.

    - Install it with the Python that trains: python -m pip install NAME.
    - A module of your own must lie beside the script or on PYTHONPATH.
    - mmgpu doctor shows which Python, torch and mmengine are used.
    """


@_cause
def resume_refused() -> None:
    """torch.load refused the checkpoint.

    torch >= 2.6 loads weights only, and mmengine 0.10.7 saves more than that.

    ``Weights only load failed ... HistoryBuffer`` when a run is resumed. Load only
    checkpoints that you trust otherwise.

    - Set it for the command that resumes: TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1.
    - Or use mmengine with weights_only=False: onedl-mmengine, or torch < 2.6.
    """


@_cause
def unknown() -> None:
    """The run ended badly, for no reason that is known here.

    An exception of the program itself, a crash, or a log that was cut off.

    A wrong cause costs more than none, so none is guessed.

    - Look at the lines shown, and for output that went elsewhere (other ranks,
      dmesg).
    - mmgpu why WORK_DIR --log FILE reads evidence and console together.
    """
