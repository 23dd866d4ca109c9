"""``mmgpu enable``: add GPUEfficiencyHook to a config."""

from __future__ import annotations

import argparse

from mmgpu_hooks.commands import rewriting

NAME = 'enable'
HELP = 'add GPUEfficiencyHook to a config'
DESCRIPTION = """\
Add GPUEfficiencyHook to a config, in place, and drop nobody's hooks: it goes into
default_hooks, which MMEngine merges. What was there is kept as .bak."""
EPILOG = rewriting.EPILOG


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    rewriting.add_arguments(parser, in_place=True)


def run(arguments: argparse.Namespace) -> int:
    """Rewrite, print."""
    from mmgpu_hooks.config.rewrite import enable_hook

    options = rewriting.parse_options(arguments)
    outcome = enable_hook(arguments.config, options)
    return rewriting.print_outcome(NAME, outcome, arguments)
