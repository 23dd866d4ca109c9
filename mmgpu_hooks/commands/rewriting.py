"""What the commands that rewrite a config have in common."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmgpu_hooks.commands import exit_codes

if TYPE_CHECKING:
    from mmgpu_hooks.config.outcome import Options, RewriteOutcome

JSON_VERSION = 1
"""Raised when a key of the JSON answer changes its meaning or goes away."""

EPILOG = """\
exit codes: 0 done or nothing to change, 1 --check and something would change,
2 input that cannot be used (one sentence on standard error says why)"""


def add_arguments(parser: argparse.ArgumentParser, *, in_place: bool) -> None:
    """Add the config and where the result goes.

    Args:
        parser: The command's parser.
        in_place: Whether the command edits in place when nothing else is asked.
    """
    parser.add_argument('config', type=Path, help='the config that is trained')
    target = parser.add_mutually_exclusive_group()
    target.add_argument('--output', type=Path, help='file to write')
    if not in_place:
        target.add_argument(
            '--in-place', action='store_true', help='edit the config, keep it as .bak'
        )
    trial = parser.add_mutually_exclusive_group()
    trial.add_argument('--dry-run', action='store_true', help='write nothing')
    trial.add_argument(
        '--check',
        action='store_true',
        help='write nothing; exit 1 when something would change',
    )
    parser.add_argument(
        '--format', choices=('text', 'json'), default='text', help='default: text'
    )


def parse_options(arguments: argparse.Namespace, suffix: str = '') -> Options:
    """The options of the rewrite that the arguments ask for."""
    from mmgpu_hooks.config.outcome import Options

    return Options(
        output=arguments.output,
        in_place=getattr(arguments, 'in_place', arguments.output is None),
        dry_run=arguments.dry_run or arguments.check,
        suffix=suffix,
    )


def print_outcome(
    command: str, outcome: RewriteOutcome, arguments: argparse.Namespace
) -> int:
    """Print what came of a rewrite; returns the exit code."""
    if outcome.reason is not None:
        print(f'mmgpu {command}: {outcome.reason}', file=sys.stderr)
    written = not (arguments.dry_run or arguments.check)
    if arguments.format == 'json':
        print(render_json(outcome, written))
    elif outcome.status != 'refused':
        print(render_text(outcome, written))
    if outcome.status == 'refused':
        return exit_codes.BAD_INPUT
    if arguments.check and outcome.status == 'rewritten':
        return exit_codes.WOULD_CHANGE
    return exit_codes.OK


def render_text(outcome: RewriteOutcome, written: bool) -> str:
    """What came of it, for a terminal."""
    if outcome.status == 'unchanged':
        return f'{outcome.source} says so already. Nothing to change.'
    lines = [outcome.diff.rstrip('\n'), '']
    lines += [f'- {note}' for note in outcome.notes]
    if written:
        lines.append(f'Written to {render_path(outcome.target)}')
    if written and outcome.backup is not None:
        lines.append(f'What was there is kept as {render_path(outcome.backup)}')
    command = render_command(outcome)
    if command is not None:
        lines.append(f'For one run only:  {command}')
    return '\n'.join(lines)


def render_command(outcome: RewriteOutcome) -> str | None:
    """The command that trains the original with the same settings, if there is one."""
    if outcome.cfg_options is None:
        return None
    config = shlex.quote(str(outcome.source))
    return f'python tools/train.py {config} {outcome.cfg_options}'


def render_json(outcome: RewriteOutcome, written: bool) -> str:
    """The outcome with stable keys; ``docs/en/rewrite.md`` documents them."""
    body: dict[str, Any] = {
        'version': JSON_VERSION,
        'status': outcome.status,
        'config': str(outcome.source),
        'output': render_path(outcome.target) if written else None,
        'backup': render_path(outcome.backup),
        'changes': {
            key: value if isinstance(value, (bool, int, float, str)) else None
            for key, value in outcome.changes.items()
        },
        'diff': outcome.diff,
        'cfg_options': outcome.cfg_options,
        'proven': outcome.proven,
        'notes': list(outcome.notes),
        'error': outcome.reason,
    }
    return json.dumps(body, indent=2)


def render_path(path: Path | None) -> str | None:
    """The path as a user here would type it."""
    if path is None:
        return None
    relative = os.path.relpath(path)
    return str(path) if relative.startswith('..') else relative
