"""Records of ``mmgpu doctor``: machine, environment and config, with their faults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Optional, Tuple

from mmgpu_hooks.schema.recorded import HostLimits
from mmgpu_hooks.schema.text import Text

MMENGINE_OPEN_FILES = 4096
"""Soft limit on open files to which MMEngine's Runner raises a lower one, where the
config does not say another."""


@dataclass(frozen=True)
class OpenFiles:
    """Limits on the open files of a process; ``None`` is no limit."""

    soft: Optional[int] = None
    hard: Optional[int] = None


@dataclass(frozen=True)
class Binding:
    """CPUs of the main thread before and after torch's OpenMP library is loaded."""

    variables: Tuple[str, ...] = ()
    """Environment variables that ask OpenMP to bind threads."""
    before_cpus: Optional[int] = None
    after_cpus: Optional[int] = None
    reason: Optional[str] = None
    """Reason why it is unknown whether threads are bound; ``None`` if it is known."""


@dataclass(frozen=True)
class Folder:
    """A file or folder and the file system that holds it, or will hold it."""

    path: str
    """Path as the config names it."""
    is_there: bool = True
    is_answering: bool = True
    """False if the file system did not answer within some seconds: nothing else is
    known of it then but its kind."""
    is_writable: bool = True
    """True if this user may write to it, or to the folder where it will be made."""
    kind: Optional[str] = None
    """Type of the file system, such as ``ext4`` or ``nfs4``; ``None`` if unknown."""
    mount_point: Optional[str] = None
    is_network: bool = False
    """True if the file system is on another host."""
    free_bytes: Optional[int] = None


@dataclass(frozen=True)
class HostCard:
    """One GPU of the host, and its place beside the cores."""

    index: int
    """Number of the GPU that ``nvidia-smi`` shows."""
    name: Optional[str] = None
    memory_total_bytes: Optional[int] = None
    pci_bus_id: Optional[str] = None
    numa_node: Optional[int] = None
    near_cpus: Optional[Tuple[int, ...]] = None
    """CPUs beside which the GPU is plugged in; ``None`` if they are unknown."""
    reason: Optional[str] = None
    """Reason why nothing is known of the GPU; ``None`` where it can be read."""
    uuid: Optional[str] = None


@dataclass(frozen=True)
class Cards:
    """The GPUs of the host and their driver."""

    cards: Tuple[HostCard, ...] = ()
    driver_version: Optional[str] = None
    driver_cuda: Optional[str] = None
    """Newest CUDA that the driver runs, such as ``12.4``."""
    visible: Optional[str] = None
    """Value of ``CUDA_VISIBLE_DEVICES``; ``None`` where it is not set."""
    visible_count: Optional[int] = None
    """Number of GPUs that ``CUDA_VISIBLE_DEVICES`` leaves a process; ``None`` where it
    is not set, or names slices, or it is unknown what it counts."""
    reason: Optional[str] = None
    """Reason why no GPU is known; ``None`` where one is."""


@dataclass(frozen=True)
class Bounds:
    """Versions of a package that MMDetection takes."""

    package: str
    """Name of the import package, such as ``mmcv``."""
    least: str
    below: str


@dataclass(frozen=True)
class Installed:
    """Packages of this Python, found without importing them."""

    python: str
    distributions: Mapping[str, str] = field(default_factory=dict)
    """Version by name of the distribution, such as ``onedl-mmcv``."""
    torch: Optional[str] = None
    torch_cuda: Optional[str] = None
    """CUDA that torch was built for; ``None`` for one of the CPU or of ROCm."""
    torch_rocm: Optional[str] = None
    """ROCm that torch was built for."""
    bounds: Tuple[Bounds, ...] = ()
    """Version bounds that MMDetection asserts when it is imported."""
    loads_weights_only: bool = False
    """True if training cannot be resumed: MMEngine leaves it to torch what a checkpoint
    may hold, and torch refuses what MMEngine puts into it."""
    lacks_pkg_resources: bool = False
    """True if MMEngine imports ``pkg_resources`` and no setuptools here have it."""


@dataclass(frozen=True)
class LoaderPlan:
    """Batches that the train loader of a config will have in flight, and their size."""

    num_workers: int
    prefetch_factor: int
    batch_size: Optional[int] = None
    batch_bytes: Optional[int] = None
    """Bytes of the tensors in a batch; ``None`` if unknown."""
    batch_tensors: Optional[int] = None
    is_measured: bool = False
    """True if a run of this config has measured both."""


@dataclass(frozen=True)
class LostHook:
    """A hook of a base config that the list ``custom_hooks`` of a child replaced."""

    name: str
    base: str
    """Base config that has the hook."""
    config: str
    """Config whose list lacks the hook."""
    cure: str
    """Statement of that config that keeps the hook."""
    is_own: bool = True
    """True if the config that was named lacks it, not one of its bases."""


@dataclass(frozen=True)
class ConfigCheck:
    """Needs of a config: its loader, data and hooks."""

    path: str
    reason: Optional[str] = None
    """Reason why nothing else is known; ``None`` where MMEngine loaded the config."""
    loader: Optional[LoaderPlan] = None
    data: Tuple[Folder, ...] = ()
    """Data sets on file systems of this host."""
    remote_data: Tuple[str, ...] = ()
    """Addresses of data that is read by another backend."""
    hooks: Tuple[str, ...] = ()
    """Places of the config that hold our hook."""
    unregistered: Optional[str] = None
    """Entry of ``hooks`` that MMEngine will not find by its name."""
    lost: Tuple[LostHook, ...] = ()
    lost_reason: Optional[str] = None
    """Reason why it is unknown whether hooks were lost."""
    open_files: int = MMENGINE_OPEN_FILES
    """Soft limit on open files to which MMEngine raises a lower one."""


@dataclass(frozen=True)
class CacheUse:
    """The folder of parsed annotations, which ``optimize='annotations'`` fills."""

    path: Optional[str] = None
    """Path of the folder; ``None`` where nothing says where the user's files are."""
    is_there: bool = False
    files: int = 0
    bytes: int = 0
    """Bytes of all files in the folder."""
    reason: Optional[str] = None
    """Reason why the folder is not used; ``None`` where it can be, or can be made."""


@dataclass(frozen=True)
class Machine:
    """Facts that ``mmgpu doctor`` collects."""

    host: HostLimits
    installed: Installed
    cards: Cards
    open_files: OpenFiles = OpenFiles()
    binding: Binding = Binding()
    group_free_bytes: Optional[int] = None
    """Memory that the control group may still use; ``None`` without a limit, or where
    it is unknown."""
    own_cpus: Optional[Tuple[int, ...]] = None
    """CPUs that this process may run on; ``None`` if they are unknown."""
    omp_num_threads: Optional[str] = None
    """Value of ``OMP_NUM_THREADS``; ``None`` where it is not set."""
    is_resume_allowed: bool = False
    """True if ``TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD`` is set."""
    work_dir: Optional[Folder] = None
    annotations: CacheUse = CacheUse()
    config: Optional[ConfigCheck] = None
    """Needs of the config; ``None`` where none was named."""


@dataclass(frozen=True)
class Checked:
    """One line of the answer: a fact, and its fault if it has one."""

    name: str
    level: str
    """Level: ``problem``, ``notice``, ``ok`` or ``unknown``."""
    text: Text
    cure: Optional[str] = None
    """Command to type, or line to write, that mends it; ``None`` where nothing is to be
    done."""
