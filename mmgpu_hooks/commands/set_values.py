"""``mmgpu set``: change settings of a config by hand, with the same proof."""

from __future__ import annotations

import argparse

from mmgpu_hooks.commands import rewriting

NAME = 'set'
HELP = 'change dataloader settings of a config'
DESCRIPTION = """\
Change settings of the dataloaders, of GPUEfficiencyHook or of auto_scale_lr in a
config, and nothing else: comments, order and _base_ stay, and MMEngine loads the
result as proof."""
EPILOG = (
    """\
example: mmgpu set configs/mine.py train_dataloader.num_workers=8

"""
    + rewriting.EPILOG
)
SUFFIX = '_set'
"""What the name of the copy ends in."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    rewriting.add_arguments(parser, in_place=False)
    parser.add_argument(
        'settings',
        nargs='*',
        metavar='KEY=VALUE',
        help='such as train_dataloader.num_workers=8',
    )
    parser.add_argument(
        '--unset',
        action='append',
        default=[],
        metavar='KEY',
        help='take a key out (may be given again)',
    )


def take_settings(arguments: argparse.Namespace, left: list[str]) -> list[str]:
    """Take what is no option for settings; argparse reads them in one place only.

    Args:
        arguments: The parsed arguments; their settings get the new ones behind.
        left: What argparse did not recognize.

    Returns:
        What is still not recognized.
    """
    if any(word.startswith('-') for word in left):
        return left
    arguments.settings = [*arguments.settings, *left]
    return []


def run(arguments: argparse.Namespace) -> int:
    """Parse the settings, rewrite, print."""
    from mmgpu_hooks.config.outcome import RefusedError, RewriteOutcome
    from mmgpu_hooks.config.request import parse_assignments
    from mmgpu_hooks.config.rewrite import rewrite_config

    try:
        settings = parse_assignments(arguments.settings, arguments.unset)
        if not settings:
            raise RefusedError(
                'expected settings, found none; write train_dataloader.num_workers=8'
            )
    except RefusedError as refusal:
        outcome = RewriteOutcome(
            'refused', arguments.config, None, None, '', refusal.reason
        )
        return rewriting.print_outcome(NAME, outcome, arguments)
    options = rewriting.parse_options(arguments, SUFFIX)
    outcome = rewrite_config(
        arguments.config,
        settings,
        output=options.output,
        in_place=options.in_place,
        dry_run=options.dry_run,
        suffix=SUFFIX,
    )
    return rewriting.print_outcome(NAME, outcome, arguments)
