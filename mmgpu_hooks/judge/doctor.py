"""Judges a machine, an environment and a config: a line for each, with its cure. Pure.

A line is a problem only where a training will fail or be slow for it, whatever it
trains; what may be meant so is a notice. Thresholds are those of the rules.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from mmgpu_hooks.judge import thresholds
from mmgpu_hooks.judge.core_limits import describe_mask, describe_quota
from mmgpu_hooks.judge.cpu import are_workers_many
from mmgpu_hooks.judge.memory import are_files_few, count_ahead, is_shm_small
from mmgpu_hooks.judge.slurm import find_narrow_start
from mmgpu_hooks.schema.checkup import (
    MMENGINE_OPEN_FILES,
    Bounds,
    Checked,
    ConfigCheck,
    Folder,
    HostCard,
    Installed,
    LoaderPlan,
    LostHook,
    Machine,
)
from mmgpu_hooks.schema.figures import format_bytes, format_numbers, plural
from mmgpu_hooks.schema.recorded import HostLimits

FAMILIES: Mapping[str, tuple[str, ...]] = {
    'mmengine': ('mmengine', 'mmengine-lite', 'onedl-mmengine'),
    'mmcv': ('mmcv', 'mmcv-lite', 'mmcv-full', 'onedl-mmcv'),
    'mmdet': ('mmdet', 'onedl-mmdetection'),
}
"""Distributions that install the same import package, by that package: OpenMMLab's
first, those of the maintained fork (``onedl-``) last."""

RESUME_VARIABLE = 'TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD'
_SILENT = 'it does not answer'
_NOT_SAID = 'this platform does not say'
_OF_MOUNT = 'check the mount: mount | grep nfs; dmesg | tail'
_MOST_LETTERS = 60
"""Of the value of an environment variable that is repeated."""
_MOST_NAMES = 2
"""Most files that are named."""


def judge_machine(machine: Machine) -> list[Checked]:
    """Judge all that was found, a line each, in the order in which they are shown."""
    config = machine.config
    rows = [
        _judge_cores(machine),
        _judge_threads(machine),
        _judge_memory(machine),
        _judge_shm(machine),
        _judge_open_files(machine),
        _judge_work_dir(machine.work_dir),
        *_judge_cards(machine),
        *_judge_driver(machine),
        _judge_torch(machine),
        *_judge_openmmlab(machine),
        *_judge_annotations(machine),
    ]
    if config is not None:
        rows += _judge_config(config, machine.host)
    return rows


def count_problems(rows: Iterable[Checked]) -> int:
    """Number of lines that say that something is wrong."""
    return sum(row.level == 'problem' for row in rows)


def _judge_cores(machine: Machine) -> Checked:
    host, usable = machine.host, machine.host.usable_cores
    if usable is None:
        return Checked('cores', 'unknown', _NOT_SAID)
    text = f'{usable:g} usable of {host.logical_cpus or "an unknown number"}'
    binders = _name_binders(host, usable)
    text += f': {binders}' if binders else ''
    narrow = find_narrow_start(host)
    if narrow is not None:
        text += f'; {narrow.fact}'
        return Checked('cores', 'problem', text, f'{narrow.command} ...')
    binding = machine.binding
    bound_by = ', '.join(binding.variables)
    before, after = binding.before_cpus, binding.after_cpus
    if host.unbound_cpus is not None:  # the shell's own process is bound already
        bound_by = host.bound_by or 'an OpenMP library'
        before, after = host.unbound_cpus, host.affinity_cpus
    if before is not None and after is not None and after < before:
        text += (
            f'; {bound_by} binds the training to {after} of {before} CPUs once it '
            'imports torch, and its workers with it'
        )
        return Checked('cores', 'problem', text, 'export OMP_PROC_BIND=false')
    if binding.reason is not None:
        return Checked('cores', 'unknown', f'{text}; {bound_by}: {binding.reason}')
    return Checked('cores', 'ok', text)


def _name_binders(host: HostLimits, usable: float) -> str:
    """The limits that leave no more than the usable cores, where those are not all."""
    if host.logical_cpus is not None and usable >= host.logical_cpus:
        return ''
    affinity = host.unbound_cpus or host.affinity_cpus
    if host.slurm_cpus == usable:
        return f'SLURM gave {host.slurm_cpus}'
    if host.cgroup_cpu_cores == usable:
        return f'CPU quota of the control group, {describe_quota(host)}'
    if affinity == usable:
        return f'affinity mask, {describe_mask(host)}'
    return ''


def _judge_threads(machine: Machine) -> Checked:
    value, usable = machine.omp_num_threads, machine.host.usable_cores
    cores = max(math.floor(usable or 1), 1)
    cure = f'export OMP_NUM_THREADS={cores}'
    if value is None:
        seen = machine.host.affinity_cpus or machine.host.logical_cpus
        if usable is not None and seen is not None and seen > math.ceil(usable):
            text = f'OMP_NUM_THREADS is not set: torch counts {seen} CPUs, quota or not'
            return Checked('threads', 'notice', text, cure)
        text = 'OMP_NUM_THREADS is not set: one a core, in workers one (torch)'
        return Checked('threads', 'ok', text)
    first = value.partition(',')[0].strip()
    threads = int(first) if re.fullmatch(r'\+?\d{1,9}', first, re.ASCII) else 0
    text = f'OMP_NUM_THREADS={_cut(value)}'
    if not threads:
        text += ' is no number of threads, and is not heeded'
        return Checked('threads', 'notice', text, cure)
    if usable is not None and threads > math.ceil(usable):
        text += f', on {usable:g} usable cores'
        return Checked('threads', 'notice', text, cure)
    return Checked('threads', 'ok', text)


def _cut(value: str) -> str:
    return value if len(value) <= _MOST_LETTERS else f'{value[:_MOST_LETTERS]}...'


def _judge_memory(machine: Machine) -> Checked:
    host, group_free = machine.host, machine.group_free_bytes
    total, limit = host.ram_total_bytes, host.cgroup_memory_bytes
    if total is None:
        return Checked('memory', 'unknown', _NOT_SAID)
    text = format_bytes(total)
    if host.ram_available_bytes is not None:
        text += f', {format_bytes(host.ram_available_bytes)} of them free'
    if limit is not None and limit < total:
        left = ''
        if group_free is not None:
            left = f', {format_bytes(group_free)} of them free'
        text = (
            f'{format_bytes(limit)}, limit of the control group (a container, a job)'
            f'{left}; the host has {text}'
        )
    return Checked('memory', 'ok', text)


def _judge_shm(machine: Machine) -> Checked:
    total, free = machine.host.shm_total_bytes, machine.host.shm_free_bytes
    if total is None or free is None:
        return Checked('/dev/shm', 'unknown', 'there is none that can be read')
    plan = machine.config.loader if machine.config else None
    text, cure = format_bytes(total), 'docker run --shm-size=8g (or --ipc=host)'
    ahead = count_ahead(plan.num_workers, plan.prefetch_factor) if plan else 0
    batch = plan.batch_bytes if plan else None
    if is_shm_small(total, free, 0):
        text += f', {format_bytes(free)} of them free: others have filled it'
        return Checked('/dev/shm', 'problem', text, 'ls -lS /dev/shm')
    if plan is not None and ahead and batch:
        most = '' if plan.is_measured else 'up to '
        need = (
            f'{plural(plan.num_workers, "worker")}: {ahead} batches of {most}'
            f'{format_bytes(batch)} in flight a rank'
        )
        if is_shm_small(total, free, ahead * batch):
            return Checked('/dev/shm', 'problem', f'{text}: too small for {need}', cure)
        return Checked('/dev/shm', 'ok', f'{text}: enough for {need}')
    if plan is not None and not ahead:
        return Checked('/dev/shm', 'ok', f'{text}; no worker needs it')
    if total <= thresholds.CONTAINER_SHM_BYTES:
        text += ", a container's default: too small for most loaders with workers"
        return Checked('/dev/shm', 'problem', text, cure)
    if plan is not None:
        text += '; what a batch takes is unknown: no run has measured it'
    elif format_bytes(free) != format_bytes(total):
        text += f', {format_bytes(free)} of them free'
    return Checked('/dev/shm', 'ok', text)


def _judge_open_files(machine: Machine) -> Checked:
    soft, hard = machine.open_files.soft, machine.open_files.hard
    if soft is None:
        return Checked('open files', 'ok', 'no limit')
    config = machine.config
    raised = max(soft, config.open_files if config else MMENGINE_OPEN_FILES)
    limit = raised if hard is None else min(raised, hard)
    text = f'{soft:,}'
    if limit > soft:
        text += f' (MMEngine raises it to {limit:,})'
    text += ', no hard limit' if hard is None else f', hard limit {hard:,}'
    wanted = thresholds.WANTED_OPEN_FILES
    wanted = wanted if hard is None else min(wanted, hard)
    cure = f'ulimit -n {wanted}' if wanted > limit else "raise it in the job's limits"
    plan = config.loader if config else None
    ahead = count_ahead(plan.num_workers, plan.prefetch_factor) if plan else 0
    if plan is None or not ahead:
        return Checked('open files', 'ok', text)
    # each image is at least one tensor, and each tensor in flight an open file
    tensors, least = plan.batch_tensors or plan.batch_size or 0, ''
    if plan.batch_tensors is None:
        least = 'at least '
    need = (
        f'{plural(plan.num_workers, "worker")}: {least}{ahead * tensors:,} tensors in '
        'flight'
    )
    if tensors and are_files_few(ahead * tensors, limit):
        return Checked('open files', 'problem', f'{text}: too few for {need}', cure)
    if plan.batch_tensors is None:
        return Checked('open files', 'ok', f'{text}; {need}')
    return Checked('open files', 'ok', f'{text}: enough for {need}')


def _judge_work_dir(folder: Folder | None) -> Checked:
    if folder is None:
        return Checked('work_dir', 'unknown', 'not examined')
    text = f'{folder.path} on {_phrase_file_system(folder)}'
    if not folder.is_answering:
        return Checked('work_dir', 'problem', f'{text}: {_SILENT}', _OF_MOUNT)
    if folder.free_bytes is not None:
        text += f', {format_bytes(folder.free_bytes)} free'
    if not folder.is_writable:
        cure = 'name another one: --work-dir DIR'
        return Checked('work_dir', 'problem', f'{text}: cannot be written to', cure)
    return Checked('work_dir', 'ok', text)


def _judge_annotations(machine: Machine) -> Iterator[Checked]:
    """The folder of parsed annotations, where a training has made one."""
    use = machine.annotations
    if not use.is_there:
        return
    if use.reason is not None:
        text = f'{use.reason}: annotations are parsed at each start'
        cure = f'chmod 700 {shlex.quote(use.path or "")}, or export MMGPU_CACHE=DIR'
        yield Checked('annotations', 'notice', text, cure)
        return
    text = (
        f'{plural(use.files, "parsed data set")} in {use.path}, '
        f'{format_bytes(use.bytes)}; deleting it is always safe'
    )
    yield Checked('annotations', 'ok', text)


def _phrase_file_system(folder: Folder) -> str:
    if folder.kind is None:
        return 'an unknown file system'
    return f'{folder.kind} (network)' if folder.is_network else folder.kind


def _judge_cards(machine: Machine) -> Iterator[Checked]:
    cards = machine.cards
    if not cards.cards:
        yield Checked('GPU', 'unknown', f'none found: {cards.reason}')
        return
    known = [card for card in cards.cards if card.reason is None]
    kinds: dict[str, list[HostCard]] = {}
    for card in known:
        size = format_bytes(card.memory_total_bytes)
        kinds.setdefault(f'{card.name or "unknown"}, {size}', []).append(card)
    texts = [f'{len(same)} x {kind}' for kind, same in kinds.items()]
    lost = [
        f'GPU {card.index} cannot be read: {card.reason}'
        for card in cards.cards
        if card.reason is not None
    ]
    text = '; '.join([*texts, *lost])
    if cards.visible is not None:
        text += f'; CUDA_VISIBLE_DEVICES={_cut(cards.visible) or "(empty)"}'
    if lost:
        cure = 'nvidia-smi; dmesg | grep Xid'
        yield Checked('GPU', 'problem', text, cure)
    elif cards.visible_count == 0:
        text += ' hides all of them'
        yield Checked('GPU', 'problem', text, 'unset CUDA_VISIBLE_DEVICES')
    else:
        yield Checked('GPU', 'ok', text)
    yield from _judge_place(known, machine.own_cpus)


def _judge_place(cards: Sequence[HostCard], own: Sequence[int] | None) -> list[Checked]:
    """The place of the cards beside the cores; no line where none is known."""
    places: dict[tuple[int | None, tuple[int, ...]], list[HostCard]] = {}
    for card in cards:
        if card.near_cpus is not None:
            places.setdefault((card.numa_node, card.near_cpus), []).append(card)
    if not places:
        return []
    texts, far = [], False
    for (node, near), some in places.items():
        names = format_numbers(tuple(card.index for card in some))
        where = f' on NUMA node {node}' if node is not None else ''
        beside = f'{plural(len(near), "CPU")} beside it'
        if own is not None:
            count = len(set(own).intersection(near))
            beside = f'{count or "none"} of our {plural(len(own), "CPU")} beside it'
            far |= not count
        texts.append(f'GPU {names}{where}, {beside}')
    text = '; '.join(texts)
    if far:
        cure = 'sbatch --gres-flags=enforce-binding, or numactl --cpunodebind=N'
        return [Checked('GPU place', 'notice', text, cure)]
    return [Checked('GPU place', 'ok', text)]


def _judge_driver(machine: Machine) -> list[Checked]:
    cards, wanted = machine.cards, machine.installed.torch_cuda
    if not cards.cards:
        return []
    text = cards.driver_version or 'of unknown version'
    if cards.driver_cuda is None:
        return [Checked('driver', 'ok', text)]
    text += f', runs CUDA up to {cards.driver_cuda}'
    # within a major version an older driver runs a newer minor one
    if wanted is not None and _major(wanted) > _major(cards.driver_cuda):
        text += f': too old for torch, which was built for CUDA {wanted}'
        cure = f'a newer driver, or torch for CUDA {cards.driver_cuda}'
        return [Checked('driver', 'problem', text, cure)]
    return [Checked('driver', 'ok', text)]


def _major(version: str) -> int:
    digits = version.partition('.')[0]
    return int(digits) if digits.isdecimal() else 0


def _judge_torch(machine: Machine) -> Checked:
    installed = machine.installed
    text = f'Python {installed.python}'
    if installed.torch is None:
        text += '; torch is not installed: nothing can be trained with this Python'
        return Checked('torch', 'unknown', text)
    built = f'CUDA {installed.torch_cuda}' if installed.torch_cuda else 'no CUDA'
    if installed.torch_rocm:
        built = f'ROCm {installed.torch_rocm}'
    text += f', torch {installed.torch} ({built})'
    if installed.torch_cuda is None and machine.cards.cards:
        text += ': it cannot use the GPU'
        cure = 'install torch for CUDA: https://pytorch.org/get-started/locally'
        return Checked('torch', 'problem', text, cure)
    return Checked('torch', 'ok', text)


def _judge_openmmlab(machine: Machine) -> Iterator[Checked]:
    installed = machine.installed
    found = [name for names in FAMILIES.values() for name in names]
    found = [name for name in found if name in installed.distributions]
    versions = ', '.join(f'{name} {installed.distributions[name]}' for name in found)
    if not found:
        text = 'neither MMEngine nor MMDetection is installed'
        yield Checked('OpenMMLab', 'unknown', text)
        return
    is_fork = any(name.startswith('onedl-') for name in found)
    text = f'{versions} ({"the maintained fork" if is_fork else "upstream"})'
    twice = [
        [name for name in names if name in installed.distributions]
        for names in FAMILIES.values()
    ]
    twice = [names for names in twice if len(names) > 1]
    if twice:
        names = [name for some in twice for name in some]
        text = f'{versions}: {" and ".join(names)} install the same files'
        kept = [some[-1] if is_fork else some[0] for some in twice]
        cure = f'pip uninstall -y {" ".join(names)}; pip install {" ".join(kept)}'
        yield Checked('OpenMMLab', 'problem', text, cure)
    else:
        yield from _judge_bounds(installed, text)
    yield from _judge_setuptools(installed)
    yield from _judge_resume(machine)


def _judge_bounds(installed: Installed, text: str) -> Iterator[Checked]:
    """Versions that MMDetection refuses when it is imported."""
    refused: list[tuple[Bounds, str]] = []
    for bounds in installed.bounds:
        for name in FAMILIES[bounds.package]:
            version = installed.distributions.get(name)
            if version is not None and not is_within(version, bounds):
                refused.append((bounds, name))
    if not refused:
        yield Checked('OpenMMLab', 'ok', text)
        return
    said = ', '.join(
        f'{bounds.package} from {bounds.least} to below {bounds.below}'
        for bounds, _ in refused
    )
    # with the fork's MMCV, MMDetection is to be the fork's too
    cure = ' '.join(
        shlex.quote(f'{bounds.package}>={bounds.least},<{bounds.below}')
        for bounds, _ in refused
    )
    others = [name for bounds, name in refused if name != bounds.package]
    cure = f'pip install {cure}'
    if others:
        cure = f'pip uninstall -y {" ".join(others)}; {cure}'
    yield Checked('OpenMMLab', 'problem', f'{text}: mmdet takes {said}', cure)


def is_within(version: str, bounds: Bounds) -> bool:
    """True if a version lies in the bounds, as MMEngine's ``digit_version`` has it."""
    from packaging.version import InvalidVersion, Version

    try:
        least, below = Version(bounds.least), Version(bounds.below)
        return least <= Version(Version(version).public) < below
    except InvalidVersion:
        return True  # nothing is known against it


def _judge_setuptools(installed: Installed) -> list[Checked]:
    if not installed.lacks_pkg_resources:
        return []
    text = (
        'pkg_resources is missing, which MMEngine imports for a base such as '
        'mmdet::...; newer setuptools do not have it'
    )
    return [Checked('setuptools', 'problem', text, "pip install 'setuptools<81'")]


def _judge_resume(machine: Machine) -> list[Checked]:
    if not machine.installed.loads_weights_only:
        return []
    text = f'torch {machine.installed.torch} refuses what MMEngine has in a checkpoint'
    if machine.is_resume_allowed:
        text = f'possible: {RESUME_VARIABLE} is set'
        return [Checked('resume', 'ok', text)]
    text += ': --resume fails'
    return [Checked('resume', 'problem', text, f'export {RESUME_VARIABLE}=1')]


def _judge_config(config: ConfigCheck, host: HostLimits) -> list[Checked]:
    if config.reason is not None:
        return [Checked('config', 'unknown', config.reason)]
    return [
        _judge_loader(config.loader, host),
        _judge_data(config),
        _judge_hook(config),
        *_judge_lost(config),
    ]


def _judge_loader(plan: LoaderPlan | None, host: HostLimits) -> Checked:
    if plan is None:
        return Checked('loader', 'unknown', 'the config has no train_dataloader')
    images = plural(plan.batch_size, 'image') if plan.batch_size else 'unknown size'
    if not plan.num_workers:
        text = f'no worker: the training process loads every batch (of {images})'
        return Checked('loader', 'ok', text)
    text = (
        f'{plural(plan.num_workers, "worker")}, {plan.prefetch_factor} batches of '
        f'{images} ahead each'
    )
    cores = host.usable_cores
    if cores is not None and are_workers_many(plan.num_workers, cores):
        text += f'; more than {cores:g} usable cores, right where they wait for files'
        return Checked('loader', 'notice', text)
    return Checked('loader', 'ok', text)


def _judge_data(config: ConfigCheck) -> Checked:
    missing = [folder.path for folder in config.data if not folder.is_there]
    silent = [folder for folder in config.data if not folder.is_answering]
    by_place: dict[str, list[str]] = {}
    for folder in config.data:
        if folder.is_there and folder.is_answering:
            by_place.setdefault(_phrase_file_system(folder), []).append(folder.path)
    parts = [f'{_phrase_names(paths)} on {place}' for place, paths in by_place.items()]
    if config.remote_data:
        parts.append(f'{_phrase_names(config.remote_data)} read by another backend')
    if silent:
        places = dict.fromkeys(map(_phrase_file_system, silent))
        names = _phrase_names([folder.path for folder in silent])
        parts.append(f'{names} on {" and ".join(places)}: {_SILENT}')
        return Checked('data', 'problem', '; '.join(parts), _OF_MOUNT)
    if missing:
        parts.append(f'{_phrase_names(missing)} not found')
        cure = 'link the data there, or set data_root'
        return Checked('data', 'problem', '; '.join(parts), cure)
    if not parts:
        text = 'the config names no file or folder of data'
        return Checked('data', 'unknown', text)
    return Checked('data', 'ok', '; '.join(parts))


def _phrase_names(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    listed = ', '.join(names[:_MOST_NAMES])
    return f'{listed} and {more} more' if more > 0 else listed


def _judge_hook(config: ConfigCheck) -> Checked:
    path = shlex.quote(config.path)
    if not config.hooks:
        text = 'GPUEfficiencyHook is not in the config, and need not be'
        cure = f'mmgpu run tools/train.py {path} (or mmgpu enable {path})'
        return Checked('hook', 'ok', text, cure)
    text = f'in the config: {", ".join(config.hooks)}'
    if config.unregistered is not None:
        text += '; MMEngine does not know that name'
        cure = f"type='mmgpu_hooks.GPUEfficiencyHook' in {config.unregistered}"
        return Checked('hook', 'problem', text, cure)
    return Checked('hook', 'ok', text)


def _judge_lost(config: ConfigCheck) -> list[Checked]:
    if config.lost_reason is not None:
        return [Checked('base hooks', 'unknown', config.lost_reason)]
    if not config.lost:
        return [Checked('base hooks', 'ok', 'none is lost')]
    names: dict[LostHook, list[str]] = {}
    for lost in config.lost:
        # those that one list dropped share a line
        names.setdefault(replace(lost, name=''), []).append(lost.name)
    return [
        Checked(
            'base hooks',
            # authors of a base may have meant it so
            'problem' if lost.is_own else 'notice',
            f'custom_hooks of {lost.config} drops {" and ".join(dropped)} of '
            f'{lost.base}',
            lost.cure,
        )
        for lost, dropped in names.items()
    ]
