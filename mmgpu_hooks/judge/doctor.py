"""Judges a machine, environment and config: one line per check, with its cure.

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
    CacheUse,
    Checked,
    ConfigCheck,
    Folder,
    HostCard,
    Installed,
    LoaderPlan,
    LostHook,
    Machine,
)
from mmgpu_hooks.schema.figures import format_bytes, format_numbers
from mmgpu_hooks.schema.recorded import HostLimits
from mmgpu_hooks.schema.text import Text, listed, phrase, quoted

FAMILIES: Mapping[str, tuple[str, ...]] = {
    'mmengine': ('mmengine', 'mmengine-lite', 'onedl-mmengine'),
    'mmcv': ('mmcv', 'mmcv-lite', 'mmcv-full', 'onedl-mmcv'),
    'mmdet': ('mmdet', 'onedl-mmdetection'),
}
"""PyPI distributions that install each import package of OpenMMLab, by package.

OpenMMLab's own come first, those of the maintained fork (``onedl-``) last.
"""

RESUME_VARIABLE = 'TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD'
_SILENT = phrase('it does not answer')
_NOT_SAID = phrase('this platform does not say')
_OF_MOUNT = phrase('check the mount: mount | grep nfs; dmesg | tail')
_MOST_LETTERS = 60
"""Maximum number of characters printed of an environment variable's value."""
_MOST_NAMES = 2
"""Maximum number of data paths that a line of ``mmgpu doctor`` names."""


def judge_machine(machine: Machine) -> list[Checked]:
    """Checks a machine, its environment and a config: one line per check, in order."""
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
    """Counts the checks that report a problem."""
    return sum(row.level == 'problem' for row in rows)


def _judge_cores(machine: Machine) -> Checked:
    host, usable = machine.host, machine.host.usable_cores
    if usable is None:
        return Checked(phrase('cores'), 'unknown', _NOT_SAID)
    text = phrase('{usable_cores:g} usable of an unknown number', usable_cores=usable)
    if host.logical_cpus:
        text = phrase(
            '{usable_cores:g} usable of {logical_cpus:d}', host, usable_cores=usable
        )
    binders = _name_binders(host, usable)
    if binders:
        text = phrase('{text}: {binders}', text=text, binders=binders)
    narrow = find_narrow_start(host)
    if narrow is not None:
        text = phrase('{text}; {fact}', text=text, fact=narrow.fact)
        return Checked(phrase('cores'), 'problem', text, f'{narrow.command} ...')
    binding = machine.binding
    bound_by = ', '.join(binding.variables)
    before, after = binding.before_cpus, binding.after_cpus
    if host.unbound_cpus is not None:  # the shell's own process is bound already
        bound_by = host.bound_by or phrase('an OpenMP library')
        before, after = host.unbound_cpus, host.affinity_cpus
    if before is not None and after is not None and after < before:
        text = phrase(
            '{text}; {bound_by} binds the training to {after} of {before} CPUs once it '
            'imports torch, and its workers with it',
            text=text,
            bound_by=bound_by,
            after=after,
            before=before,
        )
        return Checked(phrase('cores'), 'problem', text, 'export OMP_PROC_BIND=false')
    if binding.reason is not None:
        text = phrase(
            '{text}; {bound_by}: {reason}', binding, text=text, bound_by=bound_by
        )
        return Checked(phrase('cores'), 'unknown', text)
    return Checked(phrase('cores'), 'ok', text)


def _name_binders(host: HostLimits, usable: float) -> Text:
    """Returns the names of limits that determine the usable cores; empty if none."""
    if host.logical_cpus is not None and usable >= host.logical_cpus:
        return Text('')
    affinity = host.unbound_cpus or host.affinity_cpus
    if host.slurm_cpus == usable:
        return phrase('SLURM gave {slurm_cpus!s}', slurm_cpus=host.slurm_cpus)
    if host.cgroup_cpu_cores == usable:
        return phrase(
            'CPU quota of the control group, {set_by}', set_by=describe_quota(host)
        )
    if affinity == usable:
        return phrase('affinity mask, {set_by}', set_by=describe_mask(host))
    return Text('')


def _judge_threads(machine: Machine) -> Checked:
    value, usable = machine.omp_num_threads, machine.host.usable_cores
    cores = max(math.floor(usable or 1), 1)
    cure = f'export OMP_NUM_THREADS={cores}'
    if value is None:
        seen = machine.host.affinity_cpus or machine.host.logical_cpus
        if usable is not None and seen is not None and seen > math.ceil(usable):
            text = phrase(
                'OMP_NUM_THREADS is not set: torch counts {seen} CPUs, quota or not',
                seen=seen,
            )
            return Checked(phrase('threads'), 'notice', text, cure)
        text = phrase('OMP_NUM_THREADS is not set: one a core, in workers one (torch)')
        return Checked(phrase('threads'), 'ok', text)
    first = value.partition(',')[0].strip()
    threads = int(first) if re.fullmatch(r'\+?\d{1,9}', first, re.ASCII) else 0
    text = quoted(f'OMP_NUM_THREADS={_cut(value)}')
    if not threads:
        text = phrase('{text} is no number of threads, and is not heeded', text=text)
        return Checked(phrase('threads'), 'notice', text, cure)
    if usable is not None and threads > math.ceil(usable):
        text = phrase(
            '{text}, on {usable_cores:g} usable cores', text=text, usable_cores=usable
        )
        return Checked(phrase('threads'), 'notice', text, cure)
    return Checked(phrase('threads'), 'ok', text)


def _cut(value: str) -> str:
    return value if len(value) <= _MOST_LETTERS else f'{value[:_MOST_LETTERS]}...'


def _judge_memory(machine: Machine) -> Checked:
    host, group_free = machine.host, machine.group_free_bytes
    total, limit = host.ram_total_bytes, host.cgroup_memory_bytes
    if total is None:
        return Checked(phrase('memory'), 'unknown', _NOT_SAID)
    text = quoted(format_bytes(total))
    if host.ram_available_bytes is not None:
        text = phrase(
            '{text}, {ram_available_bytes} of them free',
            text=text,
            ram_available_bytes=host.ram_available_bytes,
        )
    if limit is not None and limit < total:
        facts = {'limit_bytes': limit, 'text': text}
        text = phrase(
            '{limit_bytes}, limit of the control group (a container, a job); the host '
            'has {text}',
            **facts,
        )
        if group_free is not None:
            text = phrase(
                '{limit_bytes}, limit of the control group (a container, a job), '
                '{free_bytes} of them free; the host has {text}',
                free_bytes=group_free,
                **facts,
            )
    return Checked(phrase('memory'), 'ok', text)


def _judge_shm(machine: Machine) -> Checked:
    total, free = machine.host.shm_total_bytes, machine.host.shm_free_bytes
    if total is None or free is None:
        return Checked('/dev/shm', 'unknown', phrase('there is none that can be read'))
    plan = machine.config.loader if machine.config else None
    text, cure = quoted(format_bytes(total)), 'docker run --shm-size=8g (or --ipc=host)'
    ahead = count_ahead(plan.num_workers, plan.prefetch_factor) if plan else 0
    batch = plan.batch_bytes if plan else None
    if is_shm_small(total, free, 0):
        text = phrase(
            '{text}, {free_bytes} of them free: others have filled it',
            text=text,
            free_bytes=free,
        )
        return Checked('/dev/shm', 'problem', text, 'ls -lS /dev/shm')
    if plan is not None and ahead and batch:
        facts = {'workers': plan.num_workers, 'ahead': ahead, 'batch_bytes': batch}
        need = phrase(
            '{workers}: {ahead} batches of up to {batch_bytes} in flight a rank',
            **facts,
        )
        if plan.is_measured:
            need = phrase(
                '{workers}: {ahead} batches of {batch_bytes} in flight a rank', **facts
            )
        if is_shm_small(total, free, ahead * batch):
            return Checked(
                '/dev/shm',
                'problem',
                phrase('{text}: too small for {need}', text=text, need=need),
                cure,
            )
        return Checked(
            '/dev/shm', 'ok', phrase('{text}: enough for {need}', text=text, need=need)
        )
    if plan is not None and not ahead:
        return Checked(
            '/dev/shm', 'ok', phrase('{text}; no worker needs it', text=text)
        )
    if total <= thresholds.CONTAINER_SHM_BYTES:
        text = phrase(
            "{text}, a container's default: too small for most loaders with workers",
            text=text,
        )
        return Checked('/dev/shm', 'problem', text, cure)
    if plan is not None:
        text = phrase(
            '{text}; what a batch takes is unknown: no run has measured it', text=text
        )
    elif format_bytes(free) != format_bytes(total):
        text = phrase('{text}, {free_bytes} of them free', text=text, free_bytes=free)
    return Checked('/dev/shm', 'ok', text)


def _judge_open_files(machine: Machine) -> Checked:
    soft, hard = machine.open_files.soft, machine.open_files.hard
    if soft is None:
        return Checked(phrase('open files'), 'ok', phrase('no limit'))
    config = machine.config
    raised = max(soft, config.open_files if config else MMENGINE_OPEN_FILES)
    limit = raised if hard is None else min(raised, hard)
    text = quoted(f'{soft:,}')
    if limit > soft:
        text = phrase(
            '{text} (MMEngine raises it to {limit_files:,})',
            text=text,
            limit_files=limit,
        )
    if hard is None:
        text = phrase('{text}, no hard limit', text=text)
    else:
        text = phrase(
            '{text}, hard limit {hard_limit_files:,}', text=text, hard_limit_files=hard
        )
    wanted = thresholds.WANTED_OPEN_FILES
    wanted = wanted if hard is None else min(wanted, hard)
    cure = (
        f'ulimit -n {wanted}'
        if wanted > limit
        else phrase("raise it in the job's limits")
    )
    plan = config.loader if config else None
    ahead = count_ahead(plan.num_workers, plan.prefetch_factor) if plan else 0
    if plan is None or not ahead:
        return Checked(phrase('open files'), 'ok', text)
    # each image is at least one tensor, and each tensor in flight an open file
    tensors = plan.batch_tensors or plan.batch_size or 0
    facts = {'workers': plan.num_workers, 'tensors': ahead * tensors}
    need = phrase('{workers}: {tensors:,} tensors in flight', **facts)
    if plan.batch_tensors is None:
        need = phrase('{workers}: at least {tensors:,} tensors in flight', **facts)
    if tensors and are_files_few(ahead * tensors, limit):
        return Checked(
            phrase('open files'),
            'problem',
            phrase('{text}: too few for {need}', text=text, need=need),
            cure,
        )
    if plan.batch_tensors is None:
        return Checked(
            phrase('open files'), 'ok', phrase('{text}; {need}', text=text, need=need)
        )
    return Checked(
        phrase('open files'),
        'ok',
        phrase('{text}: enough for {need}', text=text, need=need),
    )


def _judge_work_dir(folder: Folder | None) -> Checked:
    if folder is None:
        return Checked('work_dir', 'unknown', phrase('not examined'))
    text = phrase(
        '{path} on {system}', path=folder.path, system=_phrase_file_system(folder)
    )
    if not folder.is_answering:
        return Checked(
            'work_dir',
            'problem',
            phrase('{text}: {silent}', text=text, silent=_SILENT),
            _OF_MOUNT,
        )
    if folder.free_bytes is not None:
        text = phrase(
            '{text}, {free_bytes} free', text=text, free_bytes=folder.free_bytes
        )
    if not folder.is_writable:
        cure = phrase('name another one: --work-dir DIR')
        return Checked(
            'work_dir',
            'problem',
            phrase('{text}: cannot be written to', text=text),
            cure,
        )
    return Checked('work_dir', 'ok', text)


def _judge_annotations(machine: Machine) -> Iterator[Checked]:
    """Checks the cache folder of parsed annotations, if there is one."""
    use = machine.annotations
    if not use.is_there:
        return
    if use.reason is not None:
        text = phrase('{reason}: annotations are parsed at each start', use)
        yield Checked('annotations', 'notice', text, _phrase_cache_cure(use))
        return
    text = phrase(
        '{parsed_sets} as parsed, {bytes} in {path}; deleting it is always safe',
        use,
        parsed_sets=use.files,
    )
    yield Checked('annotations', 'ok', text)


def _phrase_cache_cure(use: CacheUse) -> Text:
    """Returns a command or advice that makes the folder of parsed annotations usable.

    Never ``chown -R``: samples in it are pickles, and another user's would be trusted.
    """
    folder = shlex.quote(use.path or '')
    if use.fault == 'mode':
        return phrase('chmod 700 {folder}, or export MMGPU_CACHE=DIR', folder=folder)
    if use.fault == 'kind':
        return phrase('move {folder} away, or export MMGPU_CACHE=DIR', folder=folder)
    if use.target is not None:
        return phrase(
            'export MMGPU_CACHE={folder} (where the link leads)',
            folder=shlex.quote(use.target),
        )
    return phrase('export MMGPU_CACHE=DIR, a folder of your own')


def _phrase_file_system(folder: Folder) -> Text:
    if folder.kind is None:
        return phrase('an unknown file system')
    if folder.is_network:
        return phrase('{kind} (network)', folder)
    return quoted(folder.kind)


def _judge_cards(machine: Machine) -> Iterator[Checked]:
    cards = machine.cards
    if not cards.cards:
        yield Checked(
            'GPU', 'unknown', phrase('none found: {reason}', reason=cards.reason)
        )
        return
    known = [card for card in cards.cards if card.reason is None]
    kinds: dict[str, list[HostCard]] = {}
    for card in known:
        size = format_bytes(card.memory_total_bytes)
        kinds.setdefault(f'{card.name or "unknown"}, {size}', []).append(card)
    texts: list[str] = [f'{len(same)} x {kind}' for kind, same in kinds.items()]
    lost = [
        phrase(
            'GPU {index} cannot be read: {reason}', index=card.index, reason=card.reason
        )
        for card in cards.cards
        if card.reason is not None
    ]
    text = phrase('{cards:;}', cards=(*texts, *lost))
    if cards.visible is not None:
        text = phrase(
            '{text}; CUDA_VISIBLE_DEVICES={visible}',
            text=text,
            visible=_cut(cards.visible) or phrase('(empty)'),
        )
    if lost:
        cure = 'nvidia-smi; dmesg | grep Xid'
        yield Checked('GPU', 'problem', text, cure)
    elif cards.visible_count == 0:
        text = phrase('{text} hides all of them', text=text)
        yield Checked('GPU', 'problem', text, 'unset CUDA_VISIBLE_DEVICES')
    else:
        yield Checked('GPU', 'ok', text)
    yield from _judge_place(known, machine.own_cpus)


def _judge_place(cards: Sequence[HostCard], own: Sequence[int] | None) -> list[Checked]:
    """Checks if GPUs are near the usable CPUs (NUMA); empty if that is unknown."""
    places: dict[tuple[int | None, tuple[int, ...]], list[HostCard]] = {}
    for card in cards:
        if card.near_cpus is not None:
            places.setdefault((card.numa_node, card.near_cpus), []).append(card)
    if not places:
        return []
    texts, far = [], False
    for (node, near), some in places.items():
        names = format_numbers(tuple(card.index for card in some))
        facts = {'gpus': names, 'near_cpus': len(near)}
        beside = phrase('GPU {gpus!s}, {near_cpus} beside it', **facts)
        if node is not None:
            beside = phrase(
                'GPU {gpus!s} on NUMA node {node}, {near_cpus} beside it',
                node=node,
                **facts,
            )
        if own is not None:
            count = len(set(own).intersection(near))
            far |= not count
            facts = {
                'gpus': names,
                'count': count or phrase('none'),
                'own_cpus': len(own),
            }
            beside = phrase(
                'GPU {gpus!s}, {count} of our {own_cpus} beside it', **facts
            )
            if node is not None:
                beside = phrase(
                    'GPU {gpus!s} on NUMA node {node}, {count} of our {own_cpus} '
                    'beside it',
                    node=node,
                    **facts,
                )
        texts.append(beside)
    text = phrase('{places:;}', places=tuple(texts))
    if far:
        cure = phrase('sbatch --gres-flags=enforce-binding, or numactl --cpunodebind=N')
        return [Checked(phrase('GPU place'), 'notice', text, cure)]
    return [Checked(phrase('GPU place'), 'ok', text)]


def _judge_driver(machine: Machine) -> list[Checked]:
    cards, wanted = machine.cards, machine.installed.torch_cuda
    if not cards.cards:
        return []
    text = phrase('of unknown version')
    if cards.driver_version:
        text = quoted(cards.driver_version)
    if cards.driver_cuda is None:
        return [Checked(phrase('driver'), 'ok', text)]
    text = phrase(
        '{text}, runs CUDA up to {driver_cuda}',
        text=text,
        driver_cuda=cards.driver_cuda,
    )
    # within a major version an older driver runs a newer minor one
    if wanted is not None and _major(wanted) > _major(cards.driver_cuda):
        text = phrase(
            '{text}: too old for torch, which was built for CUDA {wanted}',
            text=text,
            wanted=wanted,
        )
        cure = phrase(
            'a newer driver, or torch for CUDA {driver_cuda}',
            driver_cuda=cards.driver_cuda,
        )
        return [Checked(phrase('driver'), 'problem', text, cure)]
    return [Checked(phrase('driver'), 'ok', text)]


def _major(version: str) -> int:
    digits = version.partition('.')[0]
    return int(digits) if digits.isdecimal() else 0


def _judge_torch(machine: Machine) -> Checked:
    installed = machine.installed
    text = quoted(f'Python {installed.python}')
    if installed.torch is None:
        text = phrase(
            '{text}; torch is not installed: nothing can be trained with this Python',
            text=text,
        )
        return Checked('torch', 'unknown', text)
    built = (
        f'CUDA {installed.torch_cuda}' if installed.torch_cuda else phrase('no CUDA')
    )
    if installed.torch_rocm:
        built = f'ROCm {installed.torch_rocm}'
    text = phrase(
        '{text}, torch {torch} ({built})', text=text, torch=installed.torch, built=built
    )
    if installed.torch_cuda is None and machine.cards.cards:
        text = phrase('{text}: it cannot use the GPU', text=text)
        cure = phrase('install torch for CUDA: https://pytorch.org/get-started/locally')
        return Checked('torch', 'problem', text, cure)
    return Checked('torch', 'ok', text)


def _judge_openmmlab(machine: Machine) -> Iterator[Checked]:
    installed = machine.installed
    found = [name for names in FAMILIES.values() for name in names]
    found = [name for name in found if name in installed.distributions]
    versions = ', '.join(f'{name} {installed.distributions[name]}' for name in found)
    if not found:
        text = phrase('neither MMEngine nor MMDetection is installed')
        yield Checked('OpenMMLab', 'unknown', text)
        return
    is_fork = any(name.startswith('onedl-') for name in found)
    text = phrase('{versions} (upstream)', versions=versions)
    if is_fork:
        text = phrase('{versions} (the maintained fork)', versions=versions)
    twice = [
        [name for name in names if name in installed.distributions]
        for names in FAMILIES.values()
    ]
    twice = [names for names in twice if len(names) > 1]
    if twice:
        names = [name for some in twice for name in some]
        text = phrase(
            '{versions}: {names:&} install the same files',
            versions=versions,
            names=tuple(names),
        )
        kept = [some[-1] if is_fork else some[0] for some in twice]
        cure = f'pip uninstall -y {" ".join(names)}; pip install {" ".join(kept)}'
        yield Checked('OpenMMLab', 'problem', text, cure)
    else:
        yield from _judge_bounds(installed, text)
    yield from _judge_mmcv(installed)
    yield from _judge_setuptools(installed)
    yield from _judge_resume(machine)


def _judge_bounds(installed: Installed, text: Text) -> Iterator[Checked]:
    """Checks that installed versions are within the bounds that MMDetection asserts."""
    refused: list[tuple[Bounds, str]] = []
    for bounds in installed.bounds:
        for name in FAMILIES[bounds.package]:
            version = installed.distributions.get(name)
            if version is not None and not is_within(version, bounds):
                refused.append((bounds, name))
    if not refused:
        yield Checked('OpenMMLab', 'ok', text)
        return
    taken = tuple(
        phrase(
            '{package} from {least} to below {below}',
            package=bounds.package,
            least=bounds.least,
            below=bounds.below,
        )
        for bounds, _ in refused
    )
    # with the fork's MMCV, MMDetection is to be the fork's too
    cure = ' '.join(_require(bounds.package, bounds) for bounds, _ in refused)
    others = [name for bounds, name in refused if name != bounds.package]
    cure = f'pip install {cure}'
    if others:
        cure = f'pip uninstall -y {" ".join(others)}; {cure}'
    yield Checked(
        'OpenMMLab',
        'problem',
        phrase('{text}: mmdet takes {taken}', text=text, taken=taken),
        cure,
    )


def _require(distribution: str, bounds: Bounds) -> str:
    """Returns a requirement for pip, quoted for a shell: ``'mmcv>=2.0.0,<2.2.0'``."""
    return shlex.quote(f'{distribution}>={bounds.least},<{bounds.below}')


def is_within(version: str, bounds: Bounds) -> bool:
    """True if a version is within bounds, compared as MMEngine does."""
    from packaging.version import InvalidVersion, Version

    try:
        least, below = Version(bounds.least), Version(bounds.below)
        return least <= Version(Version(version).public) < below
    except InvalidVersion:
        return True  # nothing is known against it


def _judge_mmcv(installed: Installed) -> Iterator[Checked]:
    """Checks that an MMCV with compiled operators is installed beside MMDetection."""
    has_mmdet, found = (
        [name for name in FAMILIES[package] if name in installed.distributions]
        for package in ('mmdet', 'mmcv')
    )
    if not has_mmdet or (found and found != ['mmcv-lite']):
        return
    is_fork = has_mmdet[0].startswith('onedl-')
    wanted = FAMILIES['mmcv'][-1 if is_fork else 0]
    bounds = [each for each in installed.bounds if each.package == 'mmcv']
    if bounds:
        wanted = _require(wanted, bounds[0])
    text = phrase('MMDetection needs MMCV, which is not installed')
    cure = ['pip', 'install', wanted]
    if found:
        text = phrase('mmcv-lite has no operators, which most detectors need')
        cure = ['pip', 'uninstall', '-y', 'mmcv-lite;', *cure]
    yield Checked('MMCV', 'problem', text, ' '.join(cure))


def _judge_setuptools(installed: Installed) -> list[Checked]:
    if not installed.lacks_pkg_resources:
        return []
    text = phrase(
        'pkg_resources is missing, which MMEngine imports for a base such as '
        'mmdet::...; newer setuptools do not have it'
    )
    return [Checked('setuptools', 'problem', text, "pip install 'setuptools<81'")]


def _judge_resume(machine: Machine) -> list[Checked]:
    if not machine.installed.loads_weights_only:
        return []
    text = phrase(
        'torch {torch} refuses what MMEngine has in a checkpoint',
        torch=machine.installed.torch,
    )
    if machine.is_resume_allowed:
        text = phrase(
            'possible: {resume_variable} is set', resume_variable=RESUME_VARIABLE
        )
        return [Checked(phrase('resume'), 'ok', text)]
    text = phrase('{text}: --resume fails', text=text)
    return [Checked(phrase('resume'), 'problem', text, f'export {RESUME_VARIABLE}=1')]


def _judge_config(config: ConfigCheck, host: HostLimits) -> list[Checked]:
    if config.reason is not None:
        return [Checked(phrase('config'), 'unknown', quoted(config.reason))]
    return [
        _judge_loader(config.loader, host),
        _judge_data(config),
        _judge_hook(config),
        *_judge_lost(config),
    ]


def _judge_loader(plan: LoaderPlan | None, host: HostLimits) -> Checked:
    if plan is None:
        return Checked(
            phrase('loader'), 'unknown', phrase('the config has no train_dataloader')
        )
    images = phrase('unknown size')
    if plan.batch_size:
        images = phrase('{images}', images=plan.batch_size)
    if not plan.num_workers:
        text = phrase(
            'no worker: the training process loads every batch (of {images})',
            images=images,
        )
        return Checked(phrase('loader'), 'ok', text)
    text = phrase(
        '{workers}, {prefetch_factor} batches of {images} ahead each',
        workers=plan.num_workers,
        prefetch_factor=plan.prefetch_factor,
        images=images,
    )
    cores = host.usable_cores
    if cores is not None and are_workers_many(plan.num_workers, cores):
        text = phrase(
            '{text}; more than {cores:g} usable cores, right where they wait for files',
            text=text,
            cores=cores,
        )
        return Checked(phrase('loader'), 'notice', text)
    return Checked(phrase('loader'), 'ok', text)


def _judge_data(config: ConfigCheck) -> Checked:
    missing = [folder.path for folder in config.data if not folder.is_there]
    silent = [folder for folder in config.data if not folder.is_answering]
    by_place: dict[Text, list[str]] = {}
    for folder in config.data:
        if folder.is_there and folder.is_answering:
            by_place.setdefault(_phrase_file_system(folder), []).append(folder.path)
    parts = [
        phrase('{paths} on {place}', paths=_phrase_names(paths), place=place)
        for place, paths in by_place.items()
    ]
    if config.remote_data:
        paths = _phrase_names(config.remote_data)
        parts.append(phrase('{paths} read by another backend', paths=paths))
    if silent:
        parts.append(
            phrase(
                '{paths} on {places:&}: {silent}',
                paths=_phrase_names([folder.path for folder in silent]),
                places=tuple(dict.fromkeys(map(_phrase_file_system, silent))),
                silent=_SILENT,
            )
        )
        return Checked(phrase('data'), 'problem', _phrase_parts(parts), _OF_MOUNT)
    if missing:
        parts.append(phrase('{paths} not found', paths=_phrase_names(missing)))
        cure = phrase('link the data there, or set data_root')
        return Checked(phrase('data'), 'problem', _phrase_parts(parts), cure)
    if not parts:
        text = phrase('the config names no file or folder of data')
        return Checked(phrase('data'), 'unknown', text)
    return Checked(phrase('data'), 'ok', _phrase_parts(parts))


def _phrase_parts(parts: Sequence[Text]) -> Text:
    return phrase('{places:;}', places=tuple(parts))


def _phrase_names(names: Sequence[str]) -> Text:
    more = len(names) - _MOST_NAMES
    shown = listed(names[:_MOST_NAMES])
    return (
        phrase('{names} and {more} more', names=shown, more=more) if more > 0 else shown
    )


def _judge_hook(config: ConfigCheck) -> Checked:
    path = shlex.quote(config.path)
    if not config.hooks:
        text = phrase('GPUEfficiencyHook is not in the config, and need not be')
        cure = phrase(
            'mmgpu run tools/train.py {config} (or mmgpu enable {config})', config=path
        )
        return Checked(phrase('hook'), 'ok', text, cure)
    text = phrase('in the config: {hooks}', hooks=tuple(config.hooks))
    if config.unregistered is not None:
        text = phrase('{text}; MMEngine does not know that name', text=text)
        cure = phrase(
            "type='mmgpu_hooks.GPUEfficiencyHook' in {unregistered}",
            unregistered=config.unregistered,
        )
        return Checked(phrase('hook'), 'problem', text, cure)
    return Checked(phrase('hook'), 'ok', text)


def _judge_lost(config: ConfigCheck) -> list[Checked]:
    if config.lost_reason is not None:
        return [Checked(phrase('base hooks'), 'unknown', quoted(config.lost_reason))]
    if not config.lost:
        return [Checked(phrase('base hooks'), 'ok', phrase('none is lost'))]
    names: dict[LostHook, list[str]] = {}
    for lost in config.lost:
        # those that one list dropped share a line
        names.setdefault(replace(lost, name=''), []).append(lost.name)
    return [
        Checked(
            phrase('base hooks'),
            # authors of a base may have meant it so
            'problem' if lost.is_own else 'notice',
            phrase(
                'custom_hooks of {config} drops {dropped:&} of {base}',
                config=lost.config,
                dropped=tuple(dropped),
                base=lost.base,
            ),
            lost.cure,
        )
        for lost, dropped in names.items()
    ]
