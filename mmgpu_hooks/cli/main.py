"""``mmgpu``: one entry point for every command."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence

from mmgpu_hooks.cli import (
    compare,
    demo,
    disable,
    enable,
    estimate_memory,
    exit_codes,
    explain,
    pick_gpu,
    predict,
    recommend,
    report,
    save_bench,
    set_values,
    sweep,
    verify,
)
from mmgpu_hooks.version import __version__

_COMMANDS = (
    recommend,
    predict,
    verify,
    compare,
    report,
    set_values,
    enable,
    disable,
    estimate_memory,
    pick_gpu,
    save_bench,
    sweep,
    explain,
    demo,
)


def build_parser() -> argparse.ArgumentParser:
    """The whole command line; building it imports nothing heavy."""
    parser = argparse.ArgumentParser(
        prog='mmgpu',
        description='Where the time of an MMDetection training goes, and what to do.',
    )
    parser.add_argument('--version', action='version', version=__version__)
    commands = parser.add_subparsers(dest='command', metavar='COMMAND')
    for module in _COMMANDS:
        sub = commands.add_parser(
            module.NAME,
            help=module.HELP,
            description=module.DESCRIPTION,
            epilog=module.EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(sub)
        sub.set_defaults(run=module.run)
    return parser


@contextlib.contextmanager
def _terminated_as_by_ctrl_c() -> Iterator[None]:
    """A plain ``kill`` ends trainings and removes temporary folders as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: Arguments without the program's name; ``sys.argv`` by default.

    Returns:
        The exit code, see :mod:`mmgpu_hooks.cli.exit_codes`.
    """
    parser = build_parser()
    arguments, left = parser.parse_known_args(argv)
    if arguments.command == set_values.NAME:
        left = set_values.take_settings(arguments, left)
    if left:
        parser.error(f'unrecognized arguments: {" ".join(left)}')
    if arguments.command is None:
        parser.print_help(sys.stderr)
        return exit_codes.BAD_INPUT
    if isinstance(sys.stdout, io.TextIOWrapper):
        # a config's comments may hold what the terminal cannot show
        sys.stdout.reconfigure(errors='backslashreplace')
    try:
        with _terminated_as_by_ctrl_c():
            code: int = arguments.run(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED
    except BrokenPipeError:
        # the reader (head, less) has seen enough; keep the interpreter from flushing
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exit_codes.OK
    return code
