"""``mmgpu disable``: removes GPUEfficiencyHook from a config."""

from __future__ import annotations

from pathlib import Path

from mmgpu_hooks.commands.options import command, config_argument
from mmgpu_hooks.commands.rewriting import CODES, print_outcome, target_options
from mmgpu_hooks.config.rewrite import Options, disable_hook
from mmgpu_hooks.schema.text import phrase


@command('disable', CODES)
@config_argument
@target_options(in_place=False)
def disable(
    config: Path, output: Path | None, dry_run: bool, check: bool, form: str
) -> int:
    """Take GPUEfficiencyHook out of a config, in place.

    Out of default_hooks and custom_hooks alike; every other hook stays, and MMEngine
    loads the result as proof. What was there is kept as .bak.
    """
    options = Options(output, in_place=output is None, dry_run=dry_run or check)
    outcome = disable_hook(config, options)
    return print_outcome(
        outcome,
        form,
        dry=dry_run,
        check=check,
        unchanged=phrase('{config} has no GPUEfficiencyHook.', config=config),
    )
