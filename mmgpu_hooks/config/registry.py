"""Allowed values of known config keys (type, range), and texts for refused ones.

Settings that are tuned say so themselves (``recommend/settings/``), arguments of our
hook in ``hook_arguments.py``; here both are found by key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmgpu_hooks.config.edits import HOOK_ROOTS
from mmgpu_hooks.config.hook_arguments import ARGUMENTS, expect_argument
from mmgpu_hooks.recommend.settings import SETTINGS
from mmgpu_hooks.schema.text import phrase
from mmgpu_hooks.schema.values import Values, Whole

LOADER_SETTINGS: Mapping[str, Values] = {
    **{setting.name: setting.values for setting in SETTINGS if setting.is_of_loader},
    'num_batch_per_epoch': Whole(1, is_optional=True),
}
"""Allowed values of DataLoader settings, by name; PyTorch accepts all of them."""

RESTING: Mapping[str, Any] = {
    setting.name: setting.resting for setting in SETTINGS if setting.resting is not ...
}
"""Values of worker settings that PyTorch demands when ``num_workers`` is 0, by name."""

OTHER_SETTINGS: Mapping[str, Values] = {
    setting.key(): setting.values
    for setting in SETTINGS
    if not setting.is_of_loader and not setting.place.startswith(HOOK_ROOTS)
}
"""Allowed values of tunable settings outside of loaders and hooks, by dotted key."""

HOOK_SETTINGS: Mapping[str, Values] = {
    setting.name: setting.values
    for setting in SETTINGS
    if setting.place.startswith(HOOK_ROOTS)
}
"""Allowed values of tunable hook arguments, by name of the argument.

The hook may stand anywhere in a config."""


def describe_refusal(dotted: str, value: Any) -> str | None:
    """Returns which values a setting may have; ``None`` if the given one is allowed.

    Args:
        dotted: Key in a config.
        value: A plain one.
    """
    root, _, rest = dotted.partition('.')
    name = rest.rpartition('.')[2]
    if root in HOOK_ROOTS:
        values = HOOK_SETTINGS.get(name)
    else:
        values = OTHER_SETTINGS.get(dotted, LOADER_SETTINGS.get(name))
    if values is not None and not values.takes(value):
        return phrase(
            'expected {values} for {dotted}, found {value!r}',
            values=values.expected,
            dotted=dotted,
            value=value,
        )
    if values is None and root in HOOK_ROOTS:
        return _describe_argument(dotted, name, value)
    return None


def _describe_argument(dotted: str, name: str, value: Any) -> str | None:
    if name in ARGUMENTS:
        try:
            expect_argument(name, value)
        except (TypeError, ValueError) as error:
            return phrase('{dotted}: {error}', dotted=dotted, error=error)
    return None


def is_checked(dotted: str) -> bool:
    """True if a setting's values are checked without calling PyTorch."""
    name = dotted.rpartition('.')[2]
    return dotted in OTHER_SETTINGS or name in LOADER_SETTINGS
