"""Records of ``mmgpu doctor``: machine, environment and config, with their faults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Optional, Tuple

from mmgpu_hooks.schema.recorded import HostLimits
from mmgpu_hooks.schema.text import Text

MMENGINE_OPEN_FILES = 4096
"""Soft limit on open files to which MMEngine's Runner raises a lower limit.

Where the config does not say another.
"""


@dataclass(frozen=True)
class OpenFiles:
    """Soft and hard limit on a process's number of open files; ``None`` is no limit."""

    soft: Optional[int] = None
    hard: Optional[int] = None


@dataclass(frozen=True)
class Binding:
    """Number of CPUs the main thread may use before and after torch loads OpenMP."""

    variables: Tuple[str, ...] = ()
    """Environment variables that ask OpenMP to bind threads."""
    before_cpus: Optional[int] = None
    after_cpus: Optional[int] = None
    reason: Optional[Text] = None
    """Reason why it is unknown if OpenMP binds threads to CPUs; ``None`` if known."""


@dataclass(frozen=True)
class Folder:
    """File or folder that a training uses, with facts on its file system."""

    path: str
    """Path of the file or folder, as the config names it."""
    is_there: bool = True
    is_answering: bool = True
    """True if the file system answered within some seconds.

    Else nothing of it is known but its kind."""
    is_writable: bool = True
    """True if this user may write to the path.

    Or to the folder where it will be made."""
    kind: Optional[str] = None
    """Type of the file system, such as ``ext4`` or ``nfs4``; ``None`` if unknown."""
    mount_point: Optional[str] = None
    is_network: bool = False
    """True if the file system is on another host."""
    free_bytes: Optional[int] = None


@dataclass(frozen=True)
class HostCard:
    """One GPU of the host: name, memory, PCI bus, NUMA node and local CPUs."""

    index: int
    """Index of the GPU, as ``nvidia-smi`` shows it."""
    name: Optional[str] = None
    memory_total_bytes: Optional[int] = None
    pci_bus_id: Optional[str] = None
    numa_node: Optional[int] = None
    near_cpus: Optional[Tuple[int, ...]] = None
    """CPUs that are local to the GPU; ``None`` if unknown."""
    reason: Optional[Text] = None
    """Reason why no data of the GPU could be read; ``None`` if it could."""
    uuid: Optional[str] = None


@dataclass(frozen=True)
class Cards:
    """GPUs of the host, versions of their driver, and ``CUDA_VISIBLE_DEVICES``."""

    cards: Tuple[HostCard, ...] = ()
    driver_version: Optional[str] = None
    driver_cuda: Optional[str] = None
    """Newest CUDA version that the GPU driver supports, such as ``12.4``."""
    visible: Optional[str] = None
    """Value of ``CUDA_VISIBLE_DEVICES``; ``None`` if it is not set."""
    visible_count: Optional[int] = None
    """Number of GPUs that ``CUDA_VISIBLE_DEVICES`` lets a process use.

    ``None`` where it is not set, or names slices, or it is unknown what it counts."""
    reason: Optional[Text] = None
    """Reason why no GPU of the host is known; ``None`` if a GPU was found."""


@dataclass(frozen=True)
class Bounds:
    """Range of versions of a package that MMDetection accepts."""

    package: str
    """Import name of the package, such as ``mmcv``."""
    least: str
    below: str


@dataclass(frozen=True)
class Installed:
    """Versions of packages in this Python environment, read without an import."""

    python: str
    distributions: Mapping[str, str] = field(default_factory=dict)
    """Installed version by name of the distribution, such as ``onedl-mmcv``."""
    torch: Optional[str] = None
    torch_cuda: Optional[str] = None
    """CUDA version that torch was built for; ``None`` for a CPU or ROCm build."""
    torch_rocm: Optional[str] = None
    """ROCm version that torch was built for; ``None`` for other builds."""
    bounds: Tuple[Bounds, ...] = ()
    """Version bounds that MMDetection asserts when it is imported."""
    loads_weights_only: bool = False
    """True if torch refuses to load what MMEngine puts into a checkpoint.

    Training cannot be resumed then: MMEngine leaves it to torch what a checkpoint may
    hold."""
    lacks_pkg_resources: bool = False
    """True if MMEngine imports ``pkg_resources`` and no setuptools here provide it."""


@dataclass(frozen=True)
class LoaderPlan:
    """Workers, prefetching, batch size and batch bytes of the loader in a config."""

    num_workers: int
    prefetch_factor: int
    batch_size: Optional[int] = None
    batch_bytes: Optional[int] = None
    """Bytes of the tensors in a batch; ``None`` if unknown."""
    batch_tensors: Optional[int] = None
    is_measured: bool = False
    """True if a run of this config measured the bytes and tensors of a batch."""


@dataclass(frozen=True)
class LostHook:
    """Hook of a base config that a child config's list ``custom_hooks`` dropped."""

    name: str
    base: str
    """Path of the base config that has the lost hook."""
    config: str
    """Path of the config whose ``custom_hooks`` lack the hook of a base config."""
    cure: str
    """Python statement to add to a config, so that it keeps its base config's hook."""
    is_own: bool = True
    """True if the checked config itself dropped the hook, False if a base of it did."""


@dataclass(frozen=True)
class ConfigCheck:
    """Result of checking a config: its train loader, data sets and hooks."""

    path: str
    reason: Optional[Text] = None
    """Reason why MMEngine could not load the config; ``None`` if it was loaded."""
    loader: Optional[LoaderPlan] = None
    data: Tuple[Folder, ...] = ()
    """Files and folders of the data sets on file systems of this host."""
    remote_data: Tuple[str, ...] = ()
    """Addresses of data that is read by a file backend other than the local disk's."""
    hooks: Tuple[str, ...] = ()
    """Dotted config keys under which the config names GPUEfficiencyHook."""
    unregistered: Optional[str] = None
    """Dotted key of a hook whose name MMEngine will not find in its registry.

    One of ``hooks``."""
    lost: Tuple[LostHook, ...] = ()
    lost_reason: Optional[Text] = None
    """Reason why it is unknown if ``custom_hooks`` replaced hooks of a base config."""
    open_files: int = MMENGINE_OPEN_FILES
    """Soft limit on open files that MMEngine sets in place of any lower limit."""


CacheFault = Literal['link', 'kind', 'owner', 'mode']
"""Fault of the annotation cache's path: a link, not a folder, wrong owner or mode."""


@dataclass(frozen=True)
class CacheUse:
    """Path, files and bytes of the annotation cache (``optimize='annotations'``)."""

    path: Optional[str] = None
    """Path of the cache folder; ``None`` if the environment does not determine it."""
    is_there: bool = False
    files: int = 0
    bytes: int = 0
    """Bytes of all files in the folder of parsed annotations."""
    reason: Optional[Text] = None
    """Reason why the cache folder is not used; ``None`` if it can be used or made."""
    fault: Optional[CacheFault] = None
    """Name of the fault that makes the cache folder unusable; ``None`` without one."""
    target: Optional[str] = None
    """Path that the cache folder links to, if it is a link to a usable folder."""


@dataclass(frozen=True)
class Machine:
    """Host, GPUs, installed packages and config, as ``mmgpu doctor`` finds them."""

    host: HostLimits
    installed: Installed
    cards: Cards
    open_files: OpenFiles = OpenFiles()
    binding: Binding = Binding()
    group_free_bytes: Optional[int] = None
    """Bytes of memory that the control group of this process may still use.

    ``None`` without a limit, or where it is unknown."""
    own_cpus: Optional[Tuple[int, ...]] = None
    """CPUs that this process may run on; ``None`` if unknown."""
    omp_num_threads: Optional[str] = None
    """Value of ``OMP_NUM_THREADS``; ``None`` if it is not set."""
    is_resume_allowed: bool = False
    """True if ``TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD`` lets torch load any checkpoint."""
    work_dir: Optional[Folder] = None
    annotations: CacheUse = CacheUse()
    config: Optional[ConfigCheck] = None
    """Result of checking the config; ``None`` if no config was named."""


@dataclass(frozen=True)
class Checked:
    """Line of ``mmgpu doctor``'s answer: checked item, severity, text and cure."""

    name: str
    level: str
    """Severity of the checked item: ``problem``, ``notice``, ``ok`` or ``unknown``."""
    text: Text
    cure: Optional[str] = None
    """Command to type, or config line to write, that mends the fault.

    ``None`` where nothing is to be done."""
