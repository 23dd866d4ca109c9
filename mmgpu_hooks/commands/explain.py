"""``mmgpu explain``: the text behind a rule code."""

from __future__ import annotations

import argparse
import sys

from mmgpu_hooks.commands import exit_codes
from mmgpu_hooks.judge.rules import RULES

NAME = 'explain'
HELP = 'say what a rule code means'
DESCRIPTION = 'Say what a rule code such as MG101 means and what helps.'
EPILOG = 'exit codes: 0 explained, 2 no such code'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument('code', nargs='?', help='a rule code; all of them without one')


def run(arguments: argparse.Namespace) -> int:
    """Print the explanation of one rule, or the list of all."""
    if arguments.code is None:
        for entry in RULES.values():
            print(f'{entry.code}  {entry.title}')
        return exit_codes.OK
    asked = RULES.get(arguments.code.upper())
    if asked is None:
        print(
            f'mmgpu explain: expected one of {", ".join(RULES)}, found '
            f'{arguments.code!r}; "mmgpu explain" lists them with their titles.',
            file=sys.stderr,
        )
        return exit_codes.BAD_INPUT
    print(f'{asked.code}  {asked.title}\n\n{asked.explanation}')
    return exit_codes.OK
