"""``mmgpu enable``: adds GPUEfficiencyHook to a config."""

from __future__ import annotations

from pathlib import Path

from mmgpu_hooks.commands.options import command, config_argument, flag
from mmgpu_hooks.commands.rewriting import CODES, print_outcome, target_options
from mmgpu_hooks.config.rewrite import Options, enable_hook


@command('enable', CODES)
@config_argument
@flag('--tune', 'Have the hook tune the loaders while it trains, too.')
@target_options(in_place=False)
def enable(
    config: Path, tune: bool, output: Path | None, dry_run: bool, check: bool, form: str
) -> int:
    """Add GPUEfficiencyHook to a config, in place.

    It goes into default_hooks, which MMEngine merges, so that no hook is lost. What was
    there is kept as .bak. With --tune, a hook that is there already is told to tune.
    """
    options = Options(output, in_place=output is None, dry_run=dry_run or check)
    outcome = enable_hook(config, options, is_tuned=tune)
    return print_outcome(outcome, form, dry=dry_run, check=check)
