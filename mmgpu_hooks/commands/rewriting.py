"""What the commands that rewrite a config have in common."""

from __future__ import annotations

from typing import Any

import click

from mmgpu_hooks.commands import exit_codes
from mmgpu_hooks.commands.options import PATH, Decorator, as_format, flag
from mmgpu_hooks.config.outcome import RewriteOutcome
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.show.rewriting import render_rewrite, render_rewrite_json

CODES = '0 done or nothing to change, 1 --check and something would change'


def target_options(*, in_place: bool) -> Decorator[Any]:
    """``--output``, ``--dry-run``, ``--check``, ``--format``.

    Args:
        in_place: Whether there is ``--in-place``; without it that is the default.
    """
    beside = flag('--in-place', 'Edit the config, keep it as .bak.')
    options = [
        click.option('--output', type=PATH, metavar='FILE', help='File to write.'),
        *([beside] if in_place else []),
        flag('--dry-run', 'Write nothing.'),
        flag('--check', 'Write nothing; exit with 1 when something would change.'),
        as_format,
    ]

    def decorate(function: Any) -> Any:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def print_outcome(outcome: RewriteOutcome, form: str, *, dry: bool, check: bool) -> int:
    """Print what came of a rewrite; returns the exit code.

    Raises:
        UserError: If it was refused.
    """
    if form == 'json':
        print(render_rewrite_json(outcome, written=not (dry or check)))
    elif outcome.reason is None:
        print(render_rewrite(outcome, written=not (dry or check)))
    if outcome.reason is not None:
        raise UserError(outcome.reason)
    is_changed = outcome.status == 'rewritten'
    return exit_codes.NO if check and is_changed else exit_codes.OK
