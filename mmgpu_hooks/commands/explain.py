"""``mmgpu explain``: the text behind a rule code or a cause."""

from __future__ import annotations

import argparse
import sys

from mmgpu_hooks.commands import exit_codes
from mmgpu_hooks.judge.causes import CAUSES
from mmgpu_hooks.judge.rules import RULES

NAME = 'explain'
HELP = 'say what a rule code or a cause means'
DESCRIPTION = """\
Say what a rule code such as MG101, or a cause of mmgpu why such as oom_host, means and
what helps."""
EPILOG = 'exit codes: 0 explained, 2 no such code'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument(
        'code', nargs='?', help='a rule code or a cause; all of them without one'
    )


def run(arguments: argparse.Namespace) -> int:
    """Print one explanation, or the list of all."""
    if arguments.code is None:
        for entry in RULES.values():
            print(f'{entry.code}  {entry.title}')
        for cause in CAUSES.values():
            print(f'{cause.name:<16} {cause.title}')
        return exit_codes.OK
    named = CAUSES.get(arguments.code.lower())
    if named is not None:
        do = '\n'.join(f'- {text}' for text in named.do)
        print(f'{named.name}: {named.title}\n\n{named.page}\n\n{do}')
        return exit_codes.OK
    asked = RULES.get(arguments.code.upper())
    if asked is None:
        print(
            f'mmgpu explain: expected one of {", ".join([*RULES, *CAUSES])}, found '
            f'{arguments.code!r}; "mmgpu explain" lists them with their titles.',
            file=sys.stderr,
        )
        return exit_codes.BAD_INPUT
    print(f'{asked.code}  {asked.title}\n\n{asked.explanation}')
    return exit_codes.OK
