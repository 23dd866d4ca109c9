"""Starts a program in the place of a command of ours."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from typing import NoReturn

from mmgpu_hooks.schema.errors import UserError


def become(words: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    """Let a program take our place: signals and exit code are its own then.

    Args:
        words: The program, looked up on ``PATH``, and its arguments.
        environ: Its whole environment.

    Raises:
        UserError: If it cannot be started.
    """
    program = words[0]
    # Python ignores these, and the program would inherit that
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored, signal.SIG_DFL)
    try:
        os.execvpe(program, list(words), environ)
    except PermissionError as error:
        raise UserError(
            f'expected a program, found {program!r}, which may not be executed; if '
            f'it is a shell script, write "bash {program} ..." in its place.'
        ) from error
    except OSError as error:
        raise UserError(
            f'expected a program, {program!r} could not be started: {error.strerror}.'
        ) from error
    # an empty name, which a shell makes of a variable that is not set
    except ValueError as error:
        raise UserError(
            f'expected a program, {program!r} cannot be one; is a variable of the '
            'shell not set?'
        ) from error
