"""What a trace of torch.profiler says of the steps in it: parts, modules, launches."""

from __future__ import annotations

import gzip
import json
import re
import statistics
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.tried import ModuleTime, PartTime, Profile, Trial

WARM_UP, PLAIN = 3, 5
"""Iterations that are not measured, and that are without the profiler."""
TRACE_NAME, FACTS_NAME = 'trace.json.gz', 'profile.json'
LABEL = 'mmgpu '
"""Before the names of our ranges in a trace."""
STEP, MODULE = f'{LABEL}step', f'{LABEL}module '
LAUNCH_BOUND, KERNEL_BOUND = 0.25, 0.1
"""Share of a step in which the card is idle: above the one launching decides, up to the
other kernels do. Between them, neither alone."""

_PARTS = ('preprocessor', 'forward', 'backward', 'optimizer', 'copies', 'other')
_MODULES, _LARGE = 5, 1 / 3
_NODE = 'autograd::engine::evaluate_function: '
_KERNELS = ('kernel', 'gpu_memcpy', 'gpu_memset')
_PRODUCT = re.compile('[Cc]onv|[Mm]m($|Backward)|[Mm]atmul|:linear|Linear|[Aa]ttention')
"""Operators that are convolutions or matrix products: what AMP and TF32 shorten."""


class Work(NamedTuple):
    """What ran without a pause, and where it belongs."""

    start_us: float
    end_us: float
    part: str
    module: str | None
    operator: str = ''
    """Empty for a range of ours, whose start and end count, but no time."""


def count_iterations(profiled: int) -> int:
    """Iterations to train, those before the profiled ones included."""
    return WARM_UP + PLAIN + 1 + profiled


def read_profile(trial: Trial, iterations: int) -> Profile:
    """What a trial's trace says.

    Raises:
        UserError: If the training failed, or was over before the trace was whole.
    """
    folder = Path(trial.folder)
    if not (folder / FACTS_NAME).is_file():
        raise UserError(
            f'expected a config that trains {count_iterations(iterations)} iterations, '
            f'found that it {trial.status.replace("_", " ")} after '
            f'{trial.iterations}: {trial.error or "the training was over"}'
        )
    facts = json.loads((folder / FACTS_NAME).read_text())
    with gzip.open(folder / TRACE_NAME, 'rb') as file:
        events = json.load(file)['traceEvents']
    return summarize_trace(events, facts, iterations, trial.folder)


def parse_trace(
    events: Iterable[Mapping[str, Any]],
) -> tuple[list[Work], list[Work], list[Work]]:
    """The steps, and what ran on the host and on the card.

    What a node of the backward pass belongs to is known from the operator of the
    forward pass with its sequence number; a kernel belongs where it was launched.
    """
    steps, host, device = list[Work](), list[Work](), list[Work]()
    stacks: dict[Any, list[Work]] = defaultdict(list)
    forward: dict[Any, str | None] = {}
    launched: dict[Any, Work] = {}
    nothing = phase = Work(0.0, 0.0, 'other', None)
    spans = [event for event in events if event.get('ph') == 'X']
    for event in sorted(spans, key=lambda one: (one['ts'], -one['dur'])):
        name, kind, more = event['name'], event.get('cat'), event.get('args', {})
        start_us, end_us = event['ts'], event['ts'] + event['dur']
        stack = stacks[event.get('tid')]
        while stack and stack[-1].end_us <= start_us:
            stack.pop()
        part = phase.part if start_us < phase.end_us else 'other'
        outer = stack[-1] if stack else nothing
        if kind in ('cuda_runtime', 'cuda_driver'):
            launched[more.get('correlation')] = outer._replace(part=part)
        elif kind == 'cpu_op':
            module, number = outer.module, more.get('Sequence number')
            if name.startswith(_NODE):
                module = forward.get(number, '')
            elif number is not None and part != 'backward':
                forward[number] = module
            stack.append(Work(start_us, end_us, part, module, name))
            host += stack[-1:] * (not outer.operator)
        elif kind == 'user_annotation' and name.startswith(LABEL):
            where = part, outer.module
            if name.startswith(MODULE):
                # the outermost module that is called is the forward pass
                module = name.removeprefix(MODULE)
                first = 'preprocessor' if module == 'data_preprocessor' else 'forward'
                where = first if part == 'other' else part, module
            elif name != STEP:
                where = name.removeprefix(LABEL), outer.module
            inner = Work(start_us, end_us, *where)
            stack.append(inner)
            phase = inner if inner.part != part else phase
            steps += [inner] * (name == STEP)
            # the host was in what is around it before, and in it until its end
            host.append(Work(start_us, start_us, part, outer.module))
            host.append(Work(end_us, end_us, *where))
    for event in spans:
        if event.get('cat') in _KERNELS:
            where_from = launched.get(event['args'].get('correlation'), nothing)
            is_copy = 'HtoD' in event['name'] or 'DtoH' in event['name']
            part = 'copies' if is_copy else where_from.part
            times = event['ts'], event['ts'] + event['dur']
            device.append(Work(*times, part, *where_from[3:]))
    return steps, host, device


def summarize_trace(
    events: Iterable[Mapping[str, Any]],
    facts: Mapping[str, Any],
    iterations: int,
    folder: str = '',
) -> Profile:
    """Means over the steps of a trace.

    Every instant of a step counts once: for what runs, of several the one that began
    first, or as idle for what runs next.

    Args:
        events: Of the trace.
        facts: As the trial has written them.
        iterations: How many were profiled.
        folder: Of the trace.
    """
    steps, host, device = parse_trace(events)
    works = sorted(device or host, key=lambda work: work[:2])
    starts = [work.start_us for work in works]
    # seconds a step, busy and idle
    spent: dict[Any, list[float]] = defaultdict(lambda: [0.0, 0.0])
    products_s, kernels, unit = 0.0, 0, 1e-6 / iterations
    for step in steps:
        now_us = step.start_us
        ends = (bisect_left(starts, us) for us in (step.start_us, step.end_us))
        for work in works[slice(*ends)]:
            end_us, times = min(work.end_us, step.end_us), spent[work.part, work.module]
            ran_s = unit * max(end_us - max(work.start_us, now_us), 0.0)
            times[0] += ran_s
            times[1] += unit * max(work.start_us - now_us, 0.0)
            products_s += ran_s * bool(_PRODUCT.search(work.operator))
            kernels, now_us = kernels + 1, max(now_us, end_us)
        spent['other', None][1] += unit * (step.end_us - now_us)
    parts: dict[str, list[float]] = {name: [0.0, 0.0] for name in _PARTS}
    modules: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for (part, module), seconds in spent.items():
        parts[part] = [a + b for a, b in zip(parts[part], seconds)]
        if module is not None and part in _PARTS[:3]:
            modules[module][part == 'backward'] += sum(seconds)
    busy_s = sum(busy for busy, _ in parts.values())
    plain_s = statistics.median(facts['seconds'][WARM_UP : WARM_UP + PLAIN])
    bound, reason = _judge_bound(facts, bool(device), 1 - busy_s / plain_s)
    return Profile(
        device=facts['device'],
        iterations=iterations,
        step_s=statistics.fmean(facts['seconds'][-iterations:]),
        plain_step_s=plain_s,
        parts={name: PartTime(*seconds) for name, seconds in parts.items()},
        modules=tuple(list_modules(modules)),
        products_pct=100 * products_s / busy_s if busy_s else None,
        kernels=kernels / iterations if device else None,
        bound=bound,
        bound_reason=reason,
        amp=facts['amp'],
        capability=facts['capability'],
        flags=facts['flags'],
        folder=folder,
    )


def _judge_bound(
    facts: Mapping[str, Any], has_kernels: bool, idle: float
) -> tuple[str | None, str | None]:
    """What decides, or why that is unknown; of steps without the profiler."""
    if facts['capability'] is None:
        return None, 'on a CPU nothing is launched'
    if not has_kernels:
        return None, 'the profiler saw no kernels (CUPTI is missing or not allowed)'
    if idle > LAUNCH_BOUND:
        return 'launches', None
    return ('kernels' if idle <= KERNEL_BOUND else 'both'), None


def list_modules(spent: Mapping[str, Sequence[float]]) -> list[ModuleTime]:
    """The modules that take most, none of which contains another.

    The largest is divided into what it contains, unless most of its time is its own,
    until there are five, and no large one that could be divided is left.

    Args:
        spent: Seconds of the forward and of the backward pass in each module itself.
    """
    whole: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    inside: dict[str, set[str]] = defaultdict(set)
    for name, seconds in spent.items():
        names = name.split('.') if name else []
        paths = ['.'.join(names[:end]) for end in range(len(names) + 1)]
        for outer, inner in zip(paths, paths[1:]):
            inside[outer].add(inner)
        for path in paths:
            whole[path] = [a + b for a, b in zip(whole[path], seconds)]

    def weigh(name: str) -> float:
        return sum(whole[name])

    def is_dividable(name: str) -> bool:
        return 2 * sum(map(weigh, inside[name])) > (weigh(name) if name else 0.0)

    found = ['']
    while dividable := list(filter(is_dividable, found)):
        largest = max(dividable, key=weigh)
        if len(found) >= _MODULES and weigh(largest) <= _LARGE * weigh(''):
            break
        found = [name for name in found if name != largest] + sorted(inside[largest])
    found.sort(key=weigh, reverse=True)
    return [ModuleTime(name, *whole[name]) for name in found[:_MODULES]]
