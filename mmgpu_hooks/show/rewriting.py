"""What came of a rewrite, as text or as JSON."""

from __future__ import annotations

import shlex

from mmgpu_hooks.config.outcome import RewriteOutcome
from mmgpu_hooks.show.document import to_json
from mmgpu_hooks.show.figures import short_path


def render_rewrite(outcome: RewriteOutcome, *, written: bool) -> str:
    """The outcome for a terminal."""
    if outcome.status == 'unchanged':
        return f'{outcome.source} says so already. Nothing to change.'
    lines = [outcome.diff.rstrip('\n'), '', *(f'- {note}' for note in outcome.notes)]
    if written:
        lines.append(f'Written to {short_path(outcome.target)}')
    if written and outcome.backup is not None:
        lines.append(f'What was there is kept as {short_path(outcome.backup)}')
    command = render_once(outcome)
    if command is not None:
        lines.append(f'For one run only:  {command}')
    return '\n'.join(lines)


def render_once(outcome: RewriteOutcome) -> str | None:
    """The command that trains the original with the same settings, if there is one."""
    if outcome.cfg_options is None:
        return None
    config = shlex.quote(str(outcome.source))
    return f'python tools/train.py {config} {outcome.cfg_options}'


def render_rewrite_json(outcome: RewriteOutcome, *, written: bool) -> str:
    """The outcome with stable keys; ``docs/en/rewrite.md`` documents them."""
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
