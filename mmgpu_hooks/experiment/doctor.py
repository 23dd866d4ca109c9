"""Reads facts on machine, environment and config for ``mmgpu doctor``.

Reads only; torch and MMDetection are found by their files and not imported.
"""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from mmgpu_hooks.config.loading import (
    LoadError,
    RefusedError,
    expect_file,
    load_config,
    parse_flat,
)
from mmgpu_hooks.config.lost_hooks import find_lost_hooks
from mmgpu_hooks.config.needs import (
    find_unregistered,
    locate_data,
    locate_work_dir,
    read_open_files_limit,
)
from mmgpu_hooks.config.settings import find_hooks
from mmgpu_hooks.config.syntax import Module
from mmgpu_hooks.experiment.cards import VARIABLE, Card, parse_visible
from mmgpu_hooks.judge.doctor import FAMILIES, RESUME_VARIABLE
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.measure import installed as packages
from mmgpu_hooks.measure.absent import AbsentError, SourceError
from mmgpu_hooks.measure.annotation_cache import read_use
from mmgpu_hooks.measure.cgroup import find_memory_groups
from mmgpu_hooks.measure.clock import monotonic_s
from mmgpu_hooks.measure.gpu import open_gpu, read_driver
from mmgpu_hooks.measure.host import (
    list_binding_variables,
    read_file_system,
    read_host_limits,
    read_open_files,
    run_binding_probe,
)
from mmgpu_hooks.measure.memory import read_groups_free_bytes
from mmgpu_hooks.measure.mounts import read_mount
from mmgpu_hooks.measure.proc import read_affinity
from mmgpu_hooks.measure.topology import read_device_place
from mmgpu_hooks.memory.padded_size import (
    each_transform,
    locate_padded_size,
    type_name,
)
from mmgpu_hooks.model.workload import DEFAULT_PREFETCH
from mmgpu_hooks.schema.checkup import (
    Binding,
    Bounds,
    Cards,
    ConfigCheck,
    Folder,
    HostCard,
    Installed,
    LoaderPlan,
    Machine,
)
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.run_folder import read_run_folder
from mmgpu_hooks.schema.text import phrase
from mmgpu_hooks.show.text import short_path

PATIENCE_S = 5.0
"""Longest wait in seconds for a file system to answer."""
_BEYOND = 2**31
"""Smallest number in a config that is ignored as implausibly large."""
_CHANNELS = 3
_MAKE_FLOATS = 'PhotoMetricDistortion', 'Normalize'
"""Names of transforms that turn images into float32: four bytes per value."""
_TRUE = '1', 'y', 'yes', 'true'
"""Values of an environment variable that torch interprets as true."""
_WEIGHTS_ONLY_SINCE = 2, 6
"""First version of torch whose ``torch.load`` loads weights only by default."""


@dataclass(frozen=True)
class Places:
    """Root folders of ``/proc``, ``/sys`` and shared memory; tests replace them."""

    proc: Path = Path('/proc')
    sys: Path = Path('/sys')
    shm: Path = Path('/dev/shm')


PLACES = Places()


def examine_machine(
    config: Path | None = None, environ: Mapping[str, str] = os.environ
) -> Machine:
    """Collects all facts that ``mmgpu doctor`` judges; loading a config takes seconds.

    Args:
        config: The config to be trained here; ``None`` leaves its lines out.
        environ: The environment that a training would have.

    Raises:
        UserError: If there is no such config, or MMEngine is there and cannot load it.
    """
    check: ConfigCheck | None = None
    if config is None:
        work_dir = _examine_folders(['.'])[0]
    else:
        check, work_dir = _examine_config(config)
    own = read_affinity()
    return Machine(
        host=read_host_limits(
            ranks_on_host=1,
            proc=PLACES.proc,
            sys=PLACES.sys,
            shm=PLACES.shm,
            environ=environ,
        ),
        installed=_examine_packages(),
        cards=_examine_cards(environ),
        open_files=read_open_files(),
        binding=_examine_binding(environ),
        group_free_bytes=read_groups_free_bytes(
            find_memory_groups(PLACES.proc, PLACES.sys)
        ),
        own_cpus=None if own is None else tuple(sorted(own)),
        omp_num_threads=environ.get('OMP_NUM_THREADS'),
        is_resume_allowed=environ.get(RESUME_VARIABLE, '').lower() in _TRUE,
        work_dir=work_dir,
        annotations=read_use(environ),
        config=check,
    )


def _examine_binding(environ: Mapping[str, str]) -> Binding:
    """Runs a child process to detect if OpenMP binds threads in this environment."""
    names = tuple(list_binding_variables(environ))
    if not names:
        return Binding()
    torch = packages.find_package('torch')
    if torch is None:
        return Binding(
            names, reason=phrase('whether it binds is unknown without torch')
        )
    library = packages.find_openmp(torch)
    found = None if library is None else run_binding_probe(library, environ)
    if found is None:
        reason = phrase(
            "whether it binds is unknown: torch's OpenMP library cannot be tried"
        )
        return Binding(names, reason=reason)
    return Binding(names, found.before_cpus, found.after_cpus)


def _examine_folders(names: Sequence[str]) -> tuple[Folder, ...]:
    """Reads mounts and free space of folders in threads, as a network mount may hang.

    A thread that waits stays behind as a daemon.
    """
    found: dict[str, Folder] = {}

    def examine(name: str) -> None:
        try:
            found[name] = _examine_folder(name)
        except (OSError, ValueError):  # no name that a file can have
            found[name] = Folder(name, is_there=False, is_writable=False)

    threads = [
        threading.Thread(target=examine, args=(name,), daemon=True) for name in names
    ]
    for thread in threads:
        thread.start()
    end_s = monotonic_s() + PATIENCE_S
    for thread in threads:
        thread.join(max(end_s - monotonic_s(), 0.0))
    return tuple(found.get(name) or _name_silent(name) for name in names)


def _name_silent(name: str) -> Folder:
    mount = read_mount(os.path.abspath(name), PLACES.proc)
    return Folder(
        name,
        is_answering=False,
        kind=mount.kind if mount else None,
        mount_point=mount.point if mount else None,
        is_network=mount is not None and mount.is_network,
    )


def _examine_folder(name: str) -> Folder:
    path = os.path.realpath(name)
    above = path
    while not os.path.exists(above) and above != os.path.dirname(above):
        above = os.path.dirname(above)
    mount = read_mount(above, PLACES.proc)
    return Folder(
        name,
        is_there=os.path.exists(path),
        is_writable=os.access(above, os.W_OK),
        kind=mount.kind if mount else None,
        mount_point=mount.point if mount else None,
        is_network=mount is not None and mount.is_network,
        free_bytes=read_file_system(above).free_bytes,
    )


def _examine_cards(environ: Mapping[str, str]) -> Cards:
    visible = environ.get(VARIABLE)
    try:
        driver = read_driver()
    except AbsentError as error:
        return Cards(visible=visible, reason=error.said)
    if not driver.cards:
        return Cards(visible=visible, reason=phrase('the driver lists none'))
    cards = tuple(map(_examine_card, range(driver.cards)))
    count = _count_visible(cards, environ)
    return Cards(cards, driver.version, driver.cuda, visible, count)


def _count_visible(cards: Sequence[HostCard], environ: Mapping[str, str]) -> int | None:
    """Counts GPUs in ``CUDA_VISIBLE_DEVICES``; ``None`` if unset or not parsable."""
    value = environ.get(VARIABLE)
    # a driver may name none, and slices have names of their own
    is_nameless = any(card.reason is None and not card.uuid for card in cards)
    if value is None or is_nameless or 'mig-' in value.lower():
        return None
    named = [Card(card.index, card.uuid, card.name) for card in cards]
    try:
        return len(parse_visible(named, environ))
    except UserError:
        return None


def _examine_card(index: int) -> HostCard:
    try:
        with closing(open_gpu(index=index)) as gpu:
            device, place = gpu.device(), gpu.place()
    except (AbsentError, SourceError) as error:
        return HostCard(index, reason=error.said)
    bus_id, node, cpus = place.get('pci_bus_id'), None, None
    if bus_id is not None:
        node, cpus = read_device_place(bus_id, PLACES.sys)
    return HostCard(
        index,
        device.get('name'),
        device.get('memory_total_bytes'),
        bus_id,
        node,
        cpus or place.get('cpus'),
        uuid=device.get('uuid'),
    )


def _examine_packages() -> Installed:
    torch, mmdet, mmengine = map(packages.find_package, ('torch', 'mmdet', 'mmengine'))
    names = [name for family in FAMILIES.values() for name in family]
    constants: Mapping[str, Any] = {}
    version: str | None = None
    if torch is not None:
        constants = packages.read_constants(torch / 'version.py')
        found = packages.read_versions(['torch']).get('torch')
        version = found or constants.get('__version__')
    refuses = version is not None and _loads_weights_only(version)
    # MMEngine that knows of the argument says what it wants
    checkpoint = mmengine / 'runner' / 'checkpoint.py' if mmengine else None
    heeds = packages.has_text(checkpoint, 'weights_only') if checkpoint else None
    return Installed(
        python=platform.python_version(),
        distributions=packages.read_versions(names),
        torch=version,
        torch_cuda=constants.get('cuda'),
        torch_rocm=constants.get('hip'),
        bounds=_read_bounds(mmdet),
        loads_weights_only=refuses and heeds is False,
        lacks_pkg_resources=_lacks_pkg_resources(),
    )


def _lacks_pkg_resources() -> bool:
    """True if MMEngine needs ``pkg_resources`` and it is not installed."""
    mmengine = packages.find_package('mmengine')
    if mmengine is None or packages.find_package('pkg_resources') is not None:
        return False
    users = mmengine / 'utils' / 'package_utils.py'
    return packages.has_text(users, 'import pkg_resources') is True


def _loads_weights_only(version: str) -> bool:
    """True if ``torch.load`` of a torch version loads only weights by default."""
    from packaging.version import InvalidVersion, Version

    try:
        return Version(version).release >= _WEIGHTS_ONLY_SINCE
    except InvalidVersion:
        return False


def _read_bounds(mmdet: Path | None) -> tuple[Bounds, ...]:
    if mmdet is None:
        return ()
    constants = packages.read_constants(mmdet / '__init__.py')
    found = []
    for name in ('mmcv', 'mmengine'):
        least = constants.get(f'{name}_minimum_version')
        below = constants.get(f'{name}_maximum_version')
        if isinstance(least, str) and isinstance(below, str):
            found.append(Bounds(name, least, below))
    return tuple(found)


def _examine_config(path: Path) -> tuple[ConfigCheck, Folder]:
    """Reads facts on a loaded config and its work_dir for ``mmgpu doctor``."""
    expect_file(path)
    named = str(path)
    if packages.find_package('mmengine') is None:
        reason = phrase('MMEngine, which loads it, is not installed here')
        return ConfigCheck(named, reason=reason), _examine_folders(['.'])[0]
    try:
        config = load_config(path)
    except LoadError as error:
        if 'pkg_resources' in str(error) and _lacks_pkg_resources():
            reason = phrase('MMEngine cannot load it ({error})', error=error)
            return ConfigCheck(named, reason=reason), _examine_folders(['.'])[0]
        raise UserError(
            phrase(
                '{path}: expected a config that MMEngine loads, it does not ({error}); '
                'mend it, or run where its bases are.',
                path=path,
                error=error,
            )
        ) from error
    if path.suffix == '.py' and Module(path.read_text('utf-8')).is_script:
        raise UserError(
            phrase(
                '{path}: expected a config, found a Python file that sets nothing; '
                'name the config that is trained.',
                path=path,
            )
        )
    data = locate_data(config)
    local = [place.path for place in data if not place.is_remote]
    work_dir, *folders = _examine_folders([locate_work_dir(config, path), *local])
    hooks = find_hooks(parse_flat(config))
    unregistered = filter(partial(find_unregistered, config), hooks)
    check = ConfigCheck(
        named,
        loader=_read_plan(config, work_dir),
        data=tuple(folders),
        remote_data=tuple(place.path for place in data if place.is_remote),
        hooks=tuple(map('.'.join, hooks)),
        unregistered=next(map('.'.join, unregistered), None),
        open_files=read_open_files_limit(config),
    )
    try:
        lost = tuple(
            replace(
                hook,
                base=short_path(hook.base) or hook.base,
                config=short_path(hook.config) or hook.config,
            )
            for hook in find_lost_hooks(path)
        )
        return replace(check, lost=lost), work_dir
    except (LoadError, RefusedError, OSError) as error:
        return replace(
            check, lost_reason=phrase('unknown: {error}', error=error)
        ), work_dir


def _read_plan(config: Mapping[str, Any], work_dir: Folder) -> LoaderPlan | None:
    loader = config.get('train_dataloader')
    if not isinstance(loader, Mapping):
        return None
    plan = LoaderPlan(
        num_workers=_whole(loader.get('num_workers')) or 0,
        prefetch_factor=_whole(loader.get('prefetch_factor')) or DEFAULT_PREFETCH,
        batch_size=_whole(loader.get('batch_size')),
    )
    measured = _read_measured(plan, work_dir)
    return measured or replace(plan, batch_bytes=_estimate_batch_bytes(config, plan))


def _read_measured(plan: LoaderPlan, work_dir: Folder) -> LoaderPlan | None:
    """Adds bytes per batch, measured by a work_dir's last run, to loader settings."""
    # one that does not answer would be waited for
    if not work_dir.is_answering:
        return None
    try:
        files = read_run_folder(Path(work_dir.path))
        run = None if files.evidence is None else Run.read(files.evidence)
    except (UserError, OSError, ValueError):
        return None
    if run is None or run.meta.loader.batch_size != plan.batch_size:
        return None
    if not run.figures.batch_bytes:
        return None
    return replace(
        plan,
        batch_bytes=run.figures.batch_bytes,
        batch_tensors=run.figures.batch_tensors,
        is_measured=True,
    )


def _estimate_batch_bytes(config: Mapping[str, Any], plan: LoaderPlan) -> int | None:
    """Estimates the bytes of a batch's images after all transforms, without padding."""
    # grouped or not: that only says what a portrait is padded to
    sampler = {'type': 'AspectRatioBatchSampler'}
    loader = {**config['train_dataloader'], 'batch_sampler': sampler}
    try:
        size = locate_padded_size({'train_dataloader': loader}).size
        if size is None or plan.batch_size is None:
            return None
        is_float = any(
            type_name(transform) in _MAKE_FLOATS or transform.get('to_float32')
            for transform in each_transform({'train_dataloader': loader})
        )
        height, width = map(int, size)
    # a transform of the user's own may have the name of a known one
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError):
        return None
    if not (0 < height < _BEYOND and 0 < width < _BEYOND):
        return None
    return plan.batch_size * _CHANNELS * (4 if is_float else 1) * height * width


def _whole(value: object) -> int | None:
    """Returns a positive whole number from a config; ``None`` for any other value."""
    return value if isinstance(value, int) and 0 < value < _BEYOND else None
