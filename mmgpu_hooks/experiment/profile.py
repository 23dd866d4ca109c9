"""What torch.profiler's events say of the steps in them: parts, modules, launches."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.tried import Profile, Trial

WARM_UP, PLAIN = 3, 5
"""Iterations that are not measured, and that are without the profiler."""
TRACE_NAME, PROFILE_NAME = 'trace.json.gz', 'profile.json'
LABEL = 'mmgpu '
"""Before the names of our ranges in a trace."""
STEP, MODULE = f'{LABEL}step', f'{LABEL}module '
LAUNCH_BOUND = 0.25
"""Share of a step in which the card is idle: above it launching decides."""

_PARTS = ('preprocessor', 'forward', 'backward', 'optimizer', 'copies', 'other')
_MODULES, _LARGE = 5, 1 / 3
_NODE = 'autograd::engine::evaluate_function: '
_PRODUCT = re.compile('[Cc]onv|[Mm]m($|Backward)|[Mm]atmul|:linear|Linear|[Aa]ttention')
"""Operators that are convolutions or matrix products: what AMP and TF32 shorten."""

Place = tuple[str, str]
"""The part of a step, and the module, that something belongs to."""


def count_iterations(profiled: int) -> int:
    """Iterations to train, those before the profiled ones included."""
    return WARM_UP + PLAIN + 1 + profiled


def read_profile(trial: Trial, iterations: int) -> Profile:
    """What a trial has left.

    Raises:
        UserError: If the training failed, or was over before all were profiled.
    """
    path = Path(trial.folder, PROFILE_NAME)
    if not path.is_file():
        raise UserError(
            f'expected a config that trains {count_iterations(iterations)} iterations, '
            f'found that it {trial.status.replace("_", " ")} after '
            f'{trial.iterations}: {trial.error or "the training was over"}'
        )
    return msgspec.json.decode(path.read_bytes(), type=Profile)


def summarize_steps(
    events: Sequence[Any], iterations: int, plain_s: float, *, on_card: bool
) -> dict[str, Any]:
    """Those fields of a Profile that events give: means over the steps.

    A kernel belongs where it was launched. On a CPU operators stand for kernels. Where
    streams overlap, the kernel that began first has the time.

    Args:
        events: ``profiler.events()``: parents come first, and operators of the forward
            pass before those of the backward pass.
        iterations: How many were profiled.
        plain_s: A step without the profiler, which slows launches.
        on_card: Whether the model is on a card.
    """
    places: dict[int, Place] = {}
    forward: dict[int, str] = {}
    parts = dict.fromkeys(_PARTS, 0.0)
    modules: dict[str, float] = defaultdict(float)
    step_s, products_s, kernels, unit = 0.0, 0.0, 0, 1e-6 / iterations
    beside_us = _find_overlaps(events)
    for event in events:
        outer = places.get(id(event.cpu_parent))
        place = _find_place(event, outer, forward)
        # what runs on the card is listed once more, without its parent
        if place is None or event.device_type.name != 'CPU':
            continue
        places[id(event)] = place
        step_s += unit * event.cpu_time_total * (event.name == STEP)
        for kernel, whole_us in _list_work(event, on_card):
            took_us = whole_us - beside_us.pop((kernel, whole_us), 0.0)
            is_copy = 'HtoD' in kernel or 'DtoH' in kernel
            part, module = ('copies', '') if is_copy else place
            parts[part] += unit * took_us
            kernels += on_card
            products_s += unit * took_us * bool(_PRODUCT.search(event.name))
            if part in _PARTS[:3]:
                modules[module] += unit * took_us
    busy_s = sum(parts.values())
    bound = reason = None
    if not on_card:
        reason = 'on a CPU nothing is launched'
    elif not kernels:
        reason = 'the profiler saw no kernels (CUPTI is missing or not allowed)'
    else:
        bound = 'launches' if 1 - busy_s / plain_s > LAUNCH_BOUND else 'kernels'
    return {
        'plain_step_s': plain_s,
        'parts': {**parts, 'idle': max(step_s - busy_s, 0.0)},
        'modules': list_modules(modules),
        'products_pct': 100 * products_s / busy_s if busy_s else None,
        'kernels': kernels / iterations if kernels else None,
        'bound': bound,
        'bound_reason': reason,
    }


def _find_place(
    event: Any, outer: Place | None, forward: dict[int, str]
) -> Place | None:
    """Where an event belongs; ``None`` outside of the steps.

    What a node of the backward pass belongs to is known from the operator of the
    forward pass with its sequence number; on a card it has a thread of its own.

    Args:
        event: Of the profiler.
        outer: Where what is around it belongs.
        forward: Modules by sequence number, which gets those of this event.
    """
    name = event.name
    if name == STEP:
        return 'other', ''
    if name.startswith(_NODE):
        return 'backward', forward.get(event.sequence_nr, '')
    if outer is None:
        return None
    part, module = outer
    if name.startswith(MODULE):
        # the outermost module that is called is the forward pass
        module = name.removeprefix(MODULE)
        first = 'preprocessor' if module == 'data_preprocessor' else 'forward'
        return first if part == 'other' else part, module
    if name.startswith(LABEL):
        return name.removeprefix(LABEL), module
    if part != 'backward' and event.sequence_nr >= 0:
        forward[event.sequence_nr] = module
    return outer


def _find_overlaps(events: Sequence[Any]) -> dict[tuple[str, float], float]:
    """Microseconds of kernels, by name and duration, in which earlier ones ran too."""
    beside_us: dict[tuple[str, float], float] = defaultdict(float)
    # ranges of the host are listed on the card once more, and are no kernels
    ranges = {one.name for one in events if one.device_type.name == 'CPU'}
    spans = [(one.time_range, one.name) for one in events if one.name not in ranges]
    until_us = 0.0
    for span, name in sorted(spans, key=lambda one: one[0].start):
        took_us = span.end - span.start
        beside_us[name, took_us] += min(max(until_us - span.start, 0.0), took_us)
        until_us = max(until_us, span.end)
    return beside_us


def _list_work(event: Any, on_card: bool) -> Iterator[tuple[str, float]]:
    """Kernels that an operator launched, each with its time in us; itself on a CPU."""
    if event.name.startswith(LABEL):
        return
    if not on_card:
        yield '', event.self_cpu_time_total
    for kernel in event.kernels:
        if kernel.name != event.name:  # a range, listed on the card once more
            yield kernel.name, kernel.duration


def list_modules(spent: Mapping[str, float]) -> dict[str, float]:
    """The modules that take most, none of which contains another.

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
        parts_s = sum(whole[one] for one in inside[name])
        return 2 * parts_s > (whole[name] if name else 0.0)

    found = ['']
    while dividable := list(filter(is_dividable, found)):
        largest = max(dividable, key=whole.__getitem__)
        if len(found) >= _MODULES and whole[largest] <= _LARGE * whole['']:
            break
        found = [name for name in found if name != largest] + sorted(inside[largest])
    found.sort(key=whole.__getitem__, reverse=True)
    return {name: whole[name] for name in found[:_MODULES]}
