"""``mmgpu``: one entry point for every command."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence

from mmgpu_hooks.commands import exit_codes
from mmgpu_hooks.show.escaping import guarded_output
from mmgpu_hooks.version import __version__

_COMMANDS = {
    'recommend': 'recommend',
    'why': 'why',
    'predict': 'predict',
    'verify': 'verify',
    'compare': 'compare',
    'report': 'report',
    'set': 'set_values',
    'enable': 'enable',
    'disable': 'disable',
    'estimate-memory': 'estimate_memory',
    'pick-gpu': 'pick_gpu',
    'save-bench': 'save_bench',
    'sweep': 'sweep',
    'explain': 'explain',
    'demo': 'demo',
}
"""The module of each, by its ``NAME``."""

_AGAIN_S = 0.05
"""After which Ctrl-C is sent again where it was lost."""


def build_parser(names: Iterable[str] = _COMMANDS) -> argparse.ArgumentParser:
    """The command line; building it imports nothing heavy.

    Args:
        names: Commands that it knows. Defaults to all.
    """
    parser = argparse.ArgumentParser(
        prog='mmgpu',
        description='Where the time of an MMDetection training goes, and what to do.',
    )
    parser.add_argument('--version', action='version', version=__version__)
    commands = parser.add_subparsers(dest='command', metavar='COMMAND')
    for name in names:
        module = importlib.import_module(f'mmgpu_hooks.commands.{_COMMANDS[name]}')
        sub = commands.add_parser(
            name,
            help=module.HELP,
            description=module.DESCRIPTION,
            epilog=module.EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(sub)
        sub.set_defaults(run=module.run)
    return parser


@contextlib.contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """Ctrl-C ends trainings and removes temporary folders, and so does ``kill``."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    complain = sys.unraisablehook
    resent: list[threading.Timer] = []

    def look(unraisable: sys.UnraisableHookArgs) -> None:
        if unraisable.exc_type is not KeyboardInterrupt:
            complain(unraisable)
            return
        # it came while Python tidied up, where nothing can be raised: once more, then
        again = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), signal.SIGTERM))
        again.daemon = True
        again.start()
        resent.append(again)

    sys.unraisablehook = look
    try:
        yield
    finally:
        sys.unraisablehook = complain
        # after the command it would end whoever called us
        for again in resent:
            again.cancel()
            again.join()
        signal.signal(signal.SIGTERM, before)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: Arguments without the program's name; ``sys.argv`` by default.

    Returns:
        The exit code, see :mod:`mmgpu_hooks.commands.exit_codes`.
    """
    words = sys.argv[1:] if argv is None else argv
    try:
        with _stopped_by_signals(), guarded_output():
            return _run(words)
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED


def _run(words: Sequence[str]) -> int:
    # to import all commands takes longer than many of them do
    is_named = bool(words) and words[0] in _COMMANDS
    parser = build_parser(words[:1] if is_named else _COMMANDS)
    arguments, left = parser.parse_known_args(words)
    if arguments.command == 'set':
        from mmgpu_hooks.commands import set_values

        left = set_values.take_settings(arguments, left)
    if left:
        parser.error(f'unrecognized arguments: {" ".join(left)}')
    if arguments.command is None:
        parser.print_help(sys.stderr)
        return exit_codes.BAD_INPUT
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # the reader (head, less) has seen enough; keep the interpreter from flushing
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exit_codes.OK
    return code
