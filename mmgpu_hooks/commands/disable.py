"""``mmgpu disable``: take GPUEfficiencyHook out of a config."""

from __future__ import annotations

import argparse

from mmgpu_hooks.commands import rewriting

NAME = 'disable'
HELP = 'take GPUEfficiencyHook out of a config'
DESCRIPTION = """\
Take GPUEfficiencyHook out of a config, in place. What was there is kept as .bak."""
EPILOG = rewriting.EPILOG


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    rewriting.add_arguments(parser, in_place=True)


def run(arguments: argparse.Namespace) -> int:
    """Rewrite, print."""
    from mmgpu_hooks.config.rewrite import disable_hook

    options = rewriting.parse_options(arguments)
    outcome = disable_hook(arguments.config, options)
    return rewriting.print_outcome(NAME, outcome, arguments)
