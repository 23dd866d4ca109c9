"""Checks that names of numbers in JSON answers end with a unit or a counted noun."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mmgpu_hooks.schema.text import NOUNS

UNITS = {
    *('s', 'minutes', 'hours', 'bytes', 'gib', 'mib', 'mb'),
    # of a whole (0 to 1), per cent, times as much
    *('share', 'pct', 'ratio'),
    # as NVML has them
    *('mhz', 'w', 'c'),
}
COUNTS = {
    # nouns that no sentence counts with their plural
    *('boxes', 'faults', 'fills', 'kernels', 'parameters', 'parts', 'pixels', 'values'),
    *('calls', 'count', 'names', 'size'),
}
"""Last words of names of numbers that count things, such as ``calls``."""
PLACES = {
    # which one it is, not how much
    *('rank', 'iteration', 'epoch', 'line', 'pid', 'uid', 'gpu', 'number', 'index'),
    *('schema', 'code', 'mode', 'node', 'job'),
    # a setting's own value
    *('nice', 'value', 'rate'),
}


def has_unit(name: str) -> bool:
    """True if the name of a number tells its unit, or what it counts or identifies."""
    last = name.rpartition('_')[2]
    return last in UNITS or last in NOUNS or last in COUNTS or last in PLACES


def list_figures(facts: Any, name: str = '') -> Iterator[str]:
    """Yields the names of all numbers in the ``facts`` of a JSON answer."""
    if isinstance(facts, dict):
        for key, value in facts.items():
            yield from list_figures(value, key)
    elif isinstance(facts, list):
        for value in facts:
            yield from list_figures(value, name)
    elif isinstance(facts, (int, float)) and not isinstance(facts, bool):
        yield name


def list_facts(answer: Any) -> Iterator[Any]:
    """Yields the value of each ``facts`` key in a JSON answer."""
    if isinstance(answer, dict):
        for key, value in answer.items():
            if key == 'facts':
                yield value
            else:
                yield from list_facts(value)
    elif isinstance(answer, list):
        for value in answer:
            yield from list_facts(value)
