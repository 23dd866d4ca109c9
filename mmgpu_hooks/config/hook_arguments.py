"""Name of ``GPUEfficiencyHook``, its arguments, and checks of their values.

Without MMEngine, so that a config can be checked where the hook cannot be built.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from mmgpu_hooks.schema.text import Text, phrase
from mmgpu_hooks.schema.values import NICENESS

HOOK_TYPE = 'mmgpu_hooks.GPUEfficiencyHook'
"""Value of ``type`` by which a config names GPUEfficiencyHook without an import."""


def is_our_hook(value: object) -> bool:
    """True if a ``type``, string or class, names GPUEfficiencyHook."""
    name = value if isinstance(value, str) else getattr(value, '__name__', '')
    return str(name).rpartition('.')[2] == HOOK_TYPE.rpartition('.')[2]


def check_argument(name: str, value: Any) -> None:
    """Raises an error naming GPUEfficiencyHook if an argument's value is not allowed.

    Args:
        name: One of :data:`ARGUMENTS`.
        value: As the config gives it.

    Raises:
        TypeError: If it has another type.
        ValueError: If a number is out of range, or a name is unknown.
    """
    try:
        expect_argument(name, value)
    except (TypeError, ValueError) as error:
        said = phrase('GPUEfficiencyHook: {error}.', error=error)
        raise type(error)(said) from None


def expect_argument(name: str, value: Any) -> None:
    """Raises an error, without the hook's name, if an argument's value is not allowed.

    Raises:
        TypeError: If it has another type.
        ValueError: If a number is out of range, or a name is unknown.
    """
    _CHECKS[name](name, value)


def _number(
    kinds: Any,
    least: float,
    most: float,
    what: Text,
    *,
    is_optional: bool = False,
) -> Callable[[str, Any], None]:
    """Makes a check for a hook argument that is a number in a range."""

    def check(name: str, value: Any) -> None:
        if value is None and is_optional:
            return
        # True is an int in Python, but no number of iterations
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise TypeError(_expected(_to_be(name, what), value))
        if not least <= value <= most:
            limits = phrase(
                '{argument} ({what}) between {least_value:g} and {most_value:g}',
                argument=name,
                what=what,
                least_value=least,
                most_value=most,
            )
            raise ValueError(_expected(limits, value))

    return check


def _check_flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise TypeError(_expected(_to_be(name, phrase('True or False')), value))


def _check_scalars(name: str, value: Any) -> None:
    if value not in ('main', 'all'):
        raise ValueError(_expected(_to_be(name, phrase("'main' or 'all'")), value))


def parse_optimizations(value: str | Sequence[str] | None) -> tuple[str, ...]:
    """Lists the names of the optimisations that a value of ``optimize`` switches on.

    Args:
        value: Names with commas between them, a list or tuple of names; ``all`` is
            those of :data:`OPTIMIZATIONS`, ``None`` is none. A command line makes a
            list of commas, or leaves them.

    Raises:
        TypeError: If it is something else.
        ValueError: If a name is unknown.
    """
    listed = () if value is None else value
    if isinstance(listed, str):
        listed = listed.split(',')
    if not isinstance(listed, (list, tuple)):
        raise TypeError(_expected(_to_be('optimize', _SHAPE), value))
    names = []
    for name in listed:
        if not isinstance(name, str):
            raise TypeError(_expected(_to_be('optimize', _SHAPE), value))
        names += [name.strip()] if name.strip() else []
    for name in names:
        if name not in (*OPTIMIZATIONS, *OTHER_OPTIMIZATIONS, 'all'):
            known = (*OPTIMIZATIONS, *OTHER_OPTIMIZATIONS)
            expected = phrase("optimize out of {known} or 'all'", known=known)
            raise ValueError(_expected(expected, name))
    if 'all' in names:
        names = [*OPTIMIZATIONS, *(name for name in names if name != 'all')]
    return tuple(dict.fromkeys(names))


def _check_optimize(name: str, value: Any) -> None:
    parse_optimizations(value)


def _to_be(name: str, what: Text) -> Text:
    return phrase('{argument} to be {what}', argument=name, what=what)


def _expected(expected: Text, found: Any) -> Text:
    return phrase(
        'expected {expected}, found {found}', expected=expected, found=repr(found)
    )


OPTIMIZATIONS = ('param_groups', 'ema', 'small_tensors', 'history')
"""Names of the optimisations that ``optimize='all'`` switches on, in this order.

They leave training the same to the last bit."""

OTHER_OPTIMIZATIONS = ('annotations', 'resume')
"""Names of the optimisations that ``optimize='all'`` leaves out.

Each draws other random numbers or writes to the disk."""
_SHAPE = phrase("names with commas, a list of names or 'all'")

_SECONDS = (int, float)
_CHECKS: dict[str, Callable[[str, Any], None]] = {
    'interval': _number(
        int,
        1,
        math.inf,
        phrase("a whole number, by default LoggerHook's"),
        is_optional=True,
    ),
    'gpu_sample_period_s': _number(
        _SECONDS, 0.01, 60, phrase('in seconds, by default 0.2')
    ),
    'summary': _check_flag,
    'worker_nice': _number(
        int,
        NICENESS.least,
        NICENESS.most,
        phrase('a whole number; with 10 training goes first'),
        is_optional=True,
    ),
    'stuck_after_s': _number(
        _SECONDS, 0, 86_400, phrase('in seconds, by default 60; 0 is off')
    ),
    'scalars': _check_scalars,
    'write_config': _check_flag,
    'slurm_comment': _check_flag,
    'optimize': _check_optimize,
    'tune': _check_flag,
}
ARGUMENTS = tuple(_CHECKS)
"""Names of all arguments that GPUEfficiencyHook takes."""
