"""Replaces the ``mmgpu`` process by another program (``exec``), such as a training."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from typing import NoReturn

from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.text import Text, phrase


def become(words: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    """Replaces this process by a program (``exec``), which receives all signals.

    Args:
        words: The program, looked up on ``PATH``, and its arguments.
        environ: Its whole environment.

    Raises:
        UserError: If it cannot be started.
    """
    program = words[0]
    # Python ignores these, and the program would inherit that
    before = {
        number: signal.signal(number, signal.SIG_DFL)
        for number in (signal.SIGPIPE, signal.SIGXFSZ)
    }
    try:
        os.execvpe(program, list(words), environ)
    except OSError as error:
        found = _describe(program, environ, error)
        raise UserError(phrase('expected a program, {found}.', found=found)) from error
    # an empty name, which a shell makes of a variable that is not set
    except ValueError as error:
        raise UserError(
            phrase(
                'expected a program, {program!r} cannot be one; is a variable of the '
                'shell not set?',
                program=program,
            )
        ) from error
    finally:
        # a program that was started is not here any more
        for number, handler in before.items():
            signal.signal(number, handler)


def _describe(program: str, environ: Mapping[str, str], error: OSError) -> Text:
    """Returns why a program could not be started, and how the user can fix that."""
    if os.sep in program and os.path.isdir(program):
        return phrase(
            'found the folder {program!r}; name a file in it', program=program
        )
    if isinstance(error, PermissionError):
        return phrase(
            'found {program!r}, which may not be executed; if it is a shell script, '
            'write "bash {program} ..." in its place',
            program=program,
        )
    if error.errno == errno.ENOEXEC:
        return phrase(
            'found {program!r}, without a first line such as #!/bin/sh; if it is a '
            'shell script, write "bash {program} ..." in its place',
            program=program,
        )
    interpreter = _read_interpreter(shutil.which(program, path=environ.get('PATH')))
    if isinstance(error, FileNotFoundError) and interpreter:
        cure = phrase('mend that line')
        if interpreter.endswith('\r'):
            cure = phrase(
                "its lines end as on Windows: sed -i 's/\\r$//' {program}",
                program=program,
            )
        return phrase(
            'found {program!r}, whose first line names {interpreter!r}, which is none; '
            '{cure}',
            program=program,
            interpreter=interpreter,
            cure=cure,
        )
    return phrase(
        '{program!r} could not be started: {reason}',
        program=program,
        reason=error.strerror,
    )


def _read_interpreter(path: str | None) -> str:
    """Returns the interpreter's path from a script's ``#!`` line; empty without one."""
    line = b''
    with contextlib.suppress(OSError):
        if path is not None:
            with open(path, 'rb') as file:
                line = file.readline(256)
    words = line.removeprefix(b'#!').strip(b' \t\n').split(b' ')
    return words[0].decode(errors='replace') if line.startswith(b'#!') else ''
