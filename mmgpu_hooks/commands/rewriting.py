"""Options and output that all commands rewriting a config share."""

from __future__ import annotations

import shlex
from typing import Any

import click

from mmgpu_hooks.commands import exit_codes
from mmgpu_hooks.commands.options import PATH, Decorator, as_format, flag
from mmgpu_hooks.config.rewrite import RewriteOutcome
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.text import phrase, sentences
from mmgpu_hooks.show.document import to_json
from mmgpu_hooks.show.text import short_path
from mmgpu_hooks.show.words import say

CODES = '0 done or nothing to change, 1 --check and something would change'


def target_options(*, in_place: bool) -> Decorator[Any]:
    """Decorator that adds ``--output``, ``--dry-run``, ``--check`` and ``--format``.

    Args:
        in_place: Whether there is ``--in-place``; without it that is the default.
    """
    options = [
        click.option('--output', type=PATH, metavar='FILE', help='File to write.'),
        flag('--dry-run', 'Write nothing.'),
        flag('--check', 'Write nothing; exit with 1 when something would change.'),
        as_format,
    ]
    if in_place:
        options.insert(1, flag('--in-place', 'Edit the config, keep it as .bak.'))

    def decorate(function: Any) -> Any:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def print_outcome(
    outcome: RewriteOutcome,
    form: str,
    *,
    dry: bool,
    check: bool,
    unchanged: str | None = None,
) -> int:
    """Prints the outcome of a config rewrite, and returns the exit code.

    Args:
        outcome: The rewrite.
        form: ``text`` or ``json``.
        dry: Whether nothing was to be written.
        check: Whether a change is exit code 1.
        unchanged: Sentence for a config that is as asked already. Defaults to one that
            fits settings.

    Raises:
        UserError: If it was refused.
    """
    if form == 'json':
        print(_render_json(outcome, written=not (dry or check)))
    elif outcome.reason is None:
        if outcome.status == 'unchanged':
            held = unchanged or phrase(
                '{config} has that already.', config=outcome.source
            )
            print(say(sentences(held, phrase('Nothing to change.'))))
        else:
            print(_render_text(outcome, written=not (dry or check)))
    if outcome.reason is not None:
        raise UserError(outcome.reason)
    is_changed = outcome.status == 'rewritten'
    return exit_codes.NO if check and is_changed else exit_codes.OK


def _render_text(outcome: RewriteOutcome, *, written: bool) -> str:
    """Returns the outcome of a config rewrite as text for a terminal."""
    lines: list[str] = [outcome.diff.rstrip('\n'), '']
    lines += [f'- {say(note)}' for note in outcome.notes]
    if written:
        target = short_path(outcome.target)
        lines.append(phrase('Written to {path}', path=target))
    if written and outcome.backup is not None:
        backup = short_path(outcome.backup)
        lines.append(phrase('What was there is kept as {path}', path=backup))
    command = render_once(outcome)
    if command is not None:
        lines.append(phrase('For one run only:  {command}', command=command))
    return '\n'.join(map(say, lines))


def render_once(outcome: RewriteOutcome) -> str | None:
    """Returns a command that trains with new settings, without a rewritten config."""
    if outcome.cfg_options is None:
        return None
    config = shlex.quote(str(outcome.source))
    return f'python tools/train.py {config} {outcome.cfg_options}'


def _render_json(outcome: RewriteOutcome, *, written: bool) -> str:
    """Returns the outcome of a config rewrite as JSON.

    Keys:
        status (str): ``rewritten``, ``unchanged`` or ``refused``.
        config (str): The file that was read.
        output (str | None): The file that was written; ``None`` where none was.
        backup (str | None): What was kept of what was there.
        changes (Mapping[str, Any]): What the edit sets, by dotted key; ``null``
            stands for no value, and for one that JSON does not have.
        diff (str): Unified diff; empty where nothing changes or it was refused.
        cfg_options (str | None): The equivalent argument of ``tools/train.py`` over the
            original; ``None`` where nothing changes.
        proven (bool): True if MMEngine loaded the result and only the changes differed.
        notes (Tuple[str]): Sentences for the reader.
        error (str | None): Why it was refused.
    """
    return to_json(
        status=outcome.status,
        config=str(outcome.source),
        output=short_path(outcome.target) if written else None,
        backup=short_path(outcome.backup),
        changes={
            key: value if isinstance(value, (bool, int, float, str)) else None
            for key, value in outcome.changes.items()
        },
        diff=outcome.diff,
        cfg_options=outcome.cfg_options,
        proven=outcome.proven,
        notes=outcome.notes,
        error=outcome.reason,
    )
