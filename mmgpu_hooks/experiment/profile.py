"""Summarises torch.profiler events: seconds by step part and module, kernel counts."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.text import Text, decode_text, phrase
from mmgpu_hooks.schema.tried import Profile, Trial
from mmgpu_hooks.show.words import phrase_status

WARM_UP, PLAIN, OPTIMIZED = 'warm-up', 'plain', 'optimized'
UNPROFILED = (
    *(WARM_UP,) * 3,
    *(PLAIN,) * 4,
    *(WARM_UP,) * 2,
    *(OPTIMIZED,) * 8,
    WARM_UP,
    *(PLAIN,) * 4,
)
"""Kind of each iteration before the profiled ones: warm-up, plain or optimised.

Their order lets a drift of the machine cancel out."""
MOST_PROFILE_BYTES = 2**20
"""Largest size in bytes of a profile file that is still read."""
PROFILE_FOLDER = 'profile'
"""Name of the folder, in a work_dir, for a profile's files."""
TRACE_NAME, PROFILE_NAME = 'trace.json.gz', 'profile.json'
LABEL = 'mmgpu '
"""Prefix of the names of ranges that ``mmgpu profile`` adds to a trace."""
STEP, MODULE = f'{LABEL}step', f'{LABEL}module '
LAUNCH_BOUND = 0.25
"""Share (0 to 1) of step time with an idle GPU above which a step is launch-bound."""

_PARTS = ('preprocessor', 'forward', 'backward', 'optimizer', 'copies', 'other')
_PARTS_OF_MODULES = ('preprocessor', 'forward', 'backward')
_MODULES, _LARGE = 5, 1 / 3
_NODE = 'autograd::engine::evaluate_function: '
_PRODUCT = re.compile('[Cc]onv|[Mm]m($|Backward)|[Mm]atmul|:linear|Linear|[Aa]ttention')
"""Regex for names of operators that are convolutions or matrix products."""
_LOSS = re.compile(r'(^|\.)loss')
"""Regex for names of modules in MMDetection that compute a loss."""


class Owner(NamedTuple):
    """Part of the train step, and module, in which a profiler event happened."""

    part: str
    """Part of the train step, such as ``forward``, ``backward`` or ``optimizer``."""
    module: str
    """Dotted name of the module, as in the model; empty for the model itself."""


class _Work(NamedTuple):
    """Name of a GPU kernel (empty: CPU operator), and its duration in microseconds."""

    name: str
    """Name of the GPU kernel; empty for an operator that ran on the CPU."""
    took_us: float


@dataclass(frozen=True)
class StepSummary:
    """Summary of a profiled step: seconds by part and module, kernels, bottleneck."""

    plain_step_s: float
    parts: Mapping[str, float]
    modules: Mapping[str, float]
    products_pct: float | None
    kernels: float | None
    bound: str | None
    bound_reason: Text | None
    uncovered_s: float | None = None
    fills: float | None = None
    losses_pct: float | None = None


def count_iterations(profiled: int) -> int:
    """Returns how many iterations to train for a profile, unprofiled ones included."""
    return len(UNPROFILED) + 1 + profiled


def read_profile(trial: Trial, iterations: int) -> Profile:
    """Reads the profile that a trial left in its folder.

    Raises:
        UserError: If the training failed, or was over before all were profiled.
    """
    path = Path(trial.folder, PROFILE_NAME)
    if not path.is_file():
        raise UserError(
            phrase(
                'expected a config that trains {asked_iterations}, found that it '
                '{status} after {iterations!s}: {error}',
                asked_iterations=count_iterations(iterations),
                status=phrase_status(trial.status),
                iterations=trial.iterations,
                error=trial.error or phrase('the training was over'),
            )
        )
    return _decode(path)


def _decode(path: Path) -> Profile:
    return msgspec.json.decode(path.read_bytes(), type=Profile, dec_hook=decode_text)


def find_profile(work_dir: Path) -> Profile | None:
    """Reads the profile that ``mmgpu profile`` left in a work_dir; ``None`` if missing.

    It is of no run: whoever uses it compares what both have counted.
    """
    path = work_dir / PROFILE_FOLDER / PROFILE_NAME
    try:
        if path.stat().st_size > MOST_PROFILE_BYTES:
            return None
        return _decode(path)
    except (OSError, msgspec.MsgspecError):
        return None


def summarize_steps(
    events: Sequence[Any], iterations: int, plain_s: float, *, on_card: bool
) -> StepSummary:
    """Summarises the profiler events of train steps: seconds by part and module.

    A kernel belongs where it was launched. On a CPU operators stand for kernels. Where
    streams overlap, the kernel that began first has the time.

    Args:
        events: ``profiler.events()``: parents come first, and operators of the forward
            pass before those of the backward pass.
        iterations: How many were profiled.
        plain_s: A step without the profiler, which slows launches.
        on_card: True if the model is on a card.
    """
    owners: dict[int, Owner] = {}
    forward: dict[int, str] = {}
    parts = dict.fromkeys(_PARTS, 0.0)
    modules: dict[str, float] = defaultdict(float)
    step_s, products_s, kernels, unit = 0.0, 0.0, 0, 1e-6 / iterations
    losses_s, fills = 0.0, 0
    beside_us = _find_overlaps(events)
    for event in events:
        outer = owners.get(id(event.cpu_parent))
        owner = _find_owner(event, outer, forward)
        # what runs on the card is listed once more, without its parent
        if owner is None or event.device_type.name != 'CPU':
            continue
        owners[id(event)] = owner
        step_s += unit * event.cpu_time_total * (event.name == STEP)
        fills += _is_fill_of_new(event)
        for work in _list_work(event, on_card):
            took_us = work.took_us - beside_us.pop(work, 0.0)
            is_copy = 'HtoD' in work.name or 'DtoH' in work.name
            part = 'copies' if is_copy else owner.part
            parts[part] += unit * took_us
            kernels += on_card
            products_s += unit * took_us * bool(_PRODUCT.search(event.name))
            losses_s += unit * took_us * bool(_LOSS.search(owner.module))
            if part in _PARTS_OF_MODULES:
                modules[owner.module] += unit * took_us
    busy_s = sum(parts.values())
    bound, reason = _judge_bound(busy_s, plain_s, kernels, on_card=on_card)
    return StepSummary(
        plain_step_s=plain_s,
        parts={**parts, 'idle': max(step_s - busy_s, 0.0)},
        modules=list_modules(modules),
        products_pct=100 * products_s / busy_s if busy_s else None,
        kernels=kernels / iterations if kernels else None,
        bound=bound,
        bound_reason=reason,
        uncovered_s=None if bound is None else max(plain_s - busy_s, 0.0),
        fills=fills / iterations if fills else None,
        losses_pct=100 * losses_s / busy_s if busy_s and losses_s else None,
    )


def _judge_bound(
    busy_s: float, plain_s: float, kernels: int, *, on_card: bool
) -> tuple[str | None, Text | None]:
    """Decides if kernels or launches limit a train step, or why this is unknown."""
    if not on_card:
        return None, phrase('on a CPU nothing is launched')
    if not kernels:
        return None, phrase(
            'the profiler saw no kernels (CUPTI is missing or not allowed)'
        )
    return 'launches' if 1 - busy_s / plain_s > LAUNCH_BOUND else 'kernels', None


def _is_fill_of_new(event: Any) -> bool:
    """True if an operator fills memory that the operator before it allocated."""
    outer = event.cpu_parent
    is_fill = event.name == 'aten::fill_' and outer is not None
    return is_fill and outer.name.startswith(('aten::empty', 'aten::resize_'))


def _find_owner(
    event: Any, outer: Owner | None, forward: dict[int, str]
) -> Owner | None:
    """Finds the step part and module of a profiler event; ``None`` outside of steps.

    What a node of the backward pass belongs to is known from the operator of the
    forward pass with its sequence number; on a card it has a thread of its own.

    Args:
        event: Of the profiler.
        outer: What the event around it belongs to.
        forward: Modules by sequence number, which gets those of this event.
    """
    name = event.name
    if name == STEP:
        return Owner('other', '')
    if name.startswith(_NODE):
        return Owner('backward', forward.get(event.sequence_nr, ''))
    if outer is None:
        return None
    if name.startswith(MODULE):
        # the outermost module that is called is the forward pass
        module = name.removeprefix(MODULE)
        first = 'preprocessor' if module == 'data_preprocessor' else 'forward'
        return Owner(first if outer.part == 'other' else outer.part, module)
    if name.startswith(LABEL):
        return Owner(name.removeprefix(LABEL), outer.module)
    if outer.part != 'backward' and event.sequence_nr >= 0:
        forward[event.sequence_nr] = outer.module
    return outer


def _find_overlaps(events: Sequence[Any]) -> dict[_Work, float]:
    """Returns, by kernel, the microseconds in which an earlier kernel still ran."""
    beside_us: dict[_Work, float] = defaultdict(float)
    # ranges of the host are listed on the card once more, and are no kernels
    ranges = {event.name for event in events if event.device_type.name == 'CPU'}
    kernels = [event for event in events if event.name not in ranges]
    until_us = 0.0
    for kernel in sorted(kernels, key=lambda event: event.time_range.start):
        span = kernel.time_range
        took_us = span.end - span.start
        overlap_us = min(max(until_us - span.start, 0.0), took_us)
        beside_us[_Work(kernel.name, took_us)] += overlap_us
        until_us = max(until_us, span.end)
    return beside_us


def _list_work(event: Any, on_card: bool) -> Iterator[_Work]:
    """Yields an operator's kernels with durations; on a CPU, the operator itself."""
    if event.name.startswith(LABEL):
        return
    if not on_card:
        yield _Work('', event.self_cpu_time_total)
    for kernel in event.kernels:
        if kernel.name != event.name:  # a range, listed on the card once more
            yield _Work(kernel.name, kernel.duration)


def list_modules(spent: Mapping[str, float]) -> dict[str, float]:
    """Returns seconds of the slowest modules, by name; none of them contains another.

    The largest is divided into what it contains, unless most of its time is its own,
    until there are five, and no large one that could be divided is left.

    Args:
        spent: Seconds in each module itself.
    """
    whole: dict[str, float] = defaultdict(float)
    inside: dict[str, set[str]] = defaultdict(set)
    for name, seconds in spent.items():
        names = name.split('.') if name else []
        paths = ['.'.join(names[:end]) for end in range(len(names) + 1)]
        for outer, inner in zip(paths, paths[1:]):
            inside[outer].add(inner)
        for path in paths:
            whole[path] += seconds

    def is_dividable(name: str) -> bool:
        parts_s = sum(whole[inner] for inner in inside[name])
        return 2 * parts_s > (whole[name] if name else 0.0)

    found = ['']
    while dividable := list(filter(is_dividable, found)):
        largest = max(dividable, key=whole.__getitem__)
        if len(found) >= _MODULES and whole[largest] <= _LARGE * whole['']:
            break
        found = [name for name in found if name != largest] + sorted(inside[largest])
    found.sort(key=whole.__getitem__, reverse=True)
    return {name: whole[name] for name in found[:_MODULES]}
