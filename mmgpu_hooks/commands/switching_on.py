"""Adds to a recommendation the commands that set ``optimize`` and measure its gain."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from mmgpu_hooks.commands.read_runs import find_config
from mmgpu_hooks.config.hook_arguments import HOOK_TYPE
from mmgpu_hooks.config.hook_line import find_hook_line
from mmgpu_hooks.config.settings import HOOK_KEY
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.recommend.answer import Answer
from mmgpu_hooks.recommend.host_overhead import change_optimize
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.run_folder import RunFiles
from mmgpu_hooks.schema.text import Text, phrase, quoted
from mmgpu_hooks.show.text import shell_path, short_path

_LISTED = 'custom_hooks.'


def with_lines(answer: Answer, files: RunFiles, config: Path | None = None) -> Answer:
    """Adds to a recommendation the commands that set ``optimize`` and measure its gain.

    Args:
        answer: What is recommended.
        files: Of the run.
        config: To rewrite. Defaults to the one that the run used.
    """
    overhead, run = answer.recommendation.host_overhead, answer.summary
    if overhead is None:
        return answer
    try:
        path = config or find_config(run, files.config_copy)
    except UserError:
        path = Path('CONFIG')
    joined = ','.join(overhead.names)
    is_measured = all(saving.most_saved_s is None for saving in overhead.savings)
    folder = shell_path(run.meta.work_dir) or 'RUN_FOLDER'
    measure = f'mmgpu verify {folder}{_phrase_settings(run, joined)}'
    if not is_measured:
        measure = f'mmgpu profile {shell_path(str(path))} --work-dir {folder}'
    overhead = replace(
        overhead, switch_on=_phrase_switch(run, path, joined), measure=measure
    )
    found = replace(answer.recommendation, host_overhead=overhead)
    return replace(answer, recommendation=found)


def _phrase_switch(run: Run, path: Path, joined: str) -> Text:
    """Returns the command or hook argument that switches ``optimize`` on."""
    place = run.meta.hook_place
    if place is None and run.meta.hook_added_by is not None:
        return quoted(f'{run.meta.hook_added_by} --optimize={joined} ...')
    argument = f"optimize='{joined}'"
    if place is None:
        return phrase(
            '{argument}, as an argument of GPUEfficiencyHook in the script',
            argument=argument,
        )
    if not place.startswith(_LISTED):
        return quoted(f'mmgpu set {shell_path(str(path))} {place}.optimize={joined}')
    line = find_hook_line(path)
    where = short_path(str(path))
    if line is not None:
        where = f'{short_path(str(line.path))}:{line.line}'
    return phrase(
        '{where}: add {argument} to GPUEfficiencyHook', where=where, argument=argument
    )


def _phrase_settings(run: Run, joined: str) -> str:
    """Returns ``--set`` options of ``mmgpu verify`` that switch ``optimize`` on."""
    place, kind = run.meta.hook_place, ''
    if place is None:
        place = f'default_hooks.{HOOK_KEY}'
        kind = f' --set {place}.type={HOOK_TYPE}'
    return f'{kind} --set {shlex.quote(f"{place}.optimize={joined}")}'


def with_optimize(answer: Answer) -> Answer:
    """Adds the argument ``optimize`` to a recommendation, if the config can take it.

    Args:
        answer: With its lines.
    """
    found = answer.recommendation
    overhead = found.host_overhead
    if overhead is None:
        why = phrase(
            'Nothing to optimise: no host overhead worth it was found in the run.'
        )
        return replace(answer, notes=(why, *answer.notes))
    change = change_optimize(overhead, answer.summary)
    if change is None:
        why = phrase(
            'optimize was not written: the hook does not stand in default_hooks of the '
            'config. Instead: {switch_on}',
            overhead,
        )
        return replace(answer, notes=(why, *answer.notes))
    found = replace(found, changes=(*found.changes, change), reason=None)
    return replace(answer, recommendation=found)
