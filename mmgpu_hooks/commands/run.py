"""``mmgpu run``: trains with GPUEfficiencyHook without editing a config.

It changes the environment and is gone: it puts ``injected/`` on ``PYTHONPATH`` and
becomes the program (``exec``), so that signals and the exit code need no care.
"""

from __future__ import annotations

import ast
import os
import stat
import sys
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import click

from mmgpu_hooks.commands import options
from mmgpu_hooks.commands.output import warner
from mmgpu_hooks.commands.programs import become
from mmgpu_hooks.config.hook_arguments import expect_argument
from mmgpu_hooks.config.switches import (
    DISABLE,
    compile_injected,
    is_disabled,
    switch_on,
)
from mmgpu_hooks.config.syntax import is_read_base, parse_chain
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.text import phrase, quoted, said_by

_MOST_BYTES = 2**20
"""Maximum bytes read from a script's start, to distinguish it from a config."""

_warn = warner('run')


def _check(ctx: click.Context, option: click.Parameter, value: Any) -> Any:
    """Click callback that refuses option values that GPUEfficiencyHook refuses."""
    if value is not None:
        try:
            expect_argument(option.name or '', value)
        except (TypeError, ValueError) as error:
            raise click.BadParameter(said_by(error)) from error
    return value


@options.command(
    'run',
    'that of the program',
    # what follows the program is the program's
    context_settings={'allow_interspersed_args': False},
)
@click.option(
    '--interval',
    type=options.WHOLE,
    callback=_check,
    metavar='N',
    help="Iterations per record; by default LoggerHook's interval.",
)
@click.option(
    '--gpu-sample-period',
    'gpu_sample_period_s',
    type=options.NUMBER,
    callback=_check,
    metavar='SECONDS',
    help='Time between two samples of the GPU; by default 0.2.',
)
@click.option(
    '--summary/--no-summary', default=None, help='Log a summary when training ends.'
)
@click.option(
    '--worker-nice',
    type=options.WHOLE,
    callback=_check,
    metavar='N',
    help="Nice value of the train loader's workers, 0 to 19.",
)
@click.option(
    '--stuck-after',
    'stuck_after_s',
    type=options.NUMBER,
    callback=_check,
    metavar='SECONDS',
    help='Say where training stands when nothing goes on for so long; 0 is never.',
)
@click.option('--scalars', type=click.Choice(('main', 'all')), help='What to log.')
@click.option(
    '--write-config/--no-write-config',
    default=None,
    help="Leave the recommended config in the run's folder when training ends.",
)
@click.option(
    '--slurm-comment/--no-slurm-comment',
    default=None,
    help="Put the verdict into the comment of SLURM's job, where that is empty.",
)
@click.option(
    '--optimize',
    callback=_check,
    metavar='NAMES',
    help='Take host overhead off a step, the trained weights staying the same: '
    'param_groups, ema, small_tensors, history, or all. Shorten a start: annotations, '
    'resume.',
)
@click.option(
    '--tune/--no-tune',
    default=None,
    help='Give the loaders better settings while it trains, and measure that.',
)
@click.option('-m', 'is_module', is_flag=True, help='Run a module, as python -m does.')
@click.argument(
    'program', nargs=-1, required=True, type=click.UNPROCESSED, metavar='PROGRAM...'
)
def run(is_module: bool, program: Sequence[str], **arguments: Any) -> NoReturn:
    """Run a program; each MMEngine training in it has GPUEfficiencyHook.

    PROGRAM is a Python script or any command that starts one, with its arguments. No
    file is touched, and another program runs as ever. A hook that the config names
    keeps its arguments, but for those given here. MMGPU_DISABLE=1 in the environment
    switches the hook off.

    \b
    mmgpu run tools/train.py CONFIG
    mmgpu run torchrun --nproc_per_node 8 tools/train.py CONFIG --launcher pytorch
    mmgpu run bash tools/dist_train.sh CONFIG 8
    """
    given = {name: value for name, value in arguments.items() if value is not None}
    environ = dict(os.environ)
    if is_disabled(environ):
        _warn(
            phrase(
                '{disable} is set, so the program runs without GPUEfficiencyHook.',
                disable=DISABLE,
            )
        )
    else:
        environ = switch_on(environ, given)
        compile_injected()
    become(_complete(program, is_module), environ)


def _complete(program: Sequence[str], is_module: bool) -> list[str]:
    """Returns the user's command line, with Python's path before a script or module."""
    name, *words = program
    if is_module:
        if not name:
            raise UserError(
                phrase(
                    'expected the name of a module, found an empty one; is a variable '
                    'of the shell not set?'
                )
            )
        return [sys.executable, '-m', *program]
    if not name.endswith('.py'):
        return list(program)
    # which would run, do nothing and end well
    if _is_config(_read_script(name)):
        raise UserError(
            phrase(
                'expected a script that trains, found a config of MMEngine; write '
                '"mmgpu run tools/train.py {name}".',
                name=name,
            )
        )
    # it would be an option of Python's
    name = os.path.join('.', name) if name.startswith('-') else name
    return [sys.executable, name, *words]


def _read_script(name: str) -> bytes:
    """Reads the first bytes of a script; empty for a folder or a pipe.

    Raises:
        UserError: If there is none, or it cannot be read.
    """
    try:
        mode = os.stat(name).st_mode
        if stat.S_ISREG(mode):
            with open(name, 'rb') as file:
                return file.read(_MOST_BYTES)
        is_package = os.path.isfile(os.path.join(name, '__main__.py'))
        found = phrase('a folder without __main__.py')
        if not stat.S_ISDIR(mode) or is_package:
            return b''
    except OSError as error:
        found = quoted(error.strerror or str(error))
        own = _find_own_script(name)
        if own is not None:
            raise UserError(
                phrase(
                    "expected a Python script, found '{found}' for {name!r}; "
                    "MMDetection's is {own}.",
                    found=found,
                    name=name,
                    own=own,
                )
            ) from None
    raise UserError(
        phrase(
            "expected a Python script, found '{found}' for {name!r}.",
            found=found,
            name=name,
        )
    )


def _find_own_script(name: str) -> str | None:
    """Finds a script of the installed MMDetection by its path, ``tools/train.py``."""
    path = Path(name)
    spec = find_spec('mmdet') if path.parent.name == 'tools' else None
    if spec is None or spec.origin is None:
        return None
    own = Path(spec.origin).parent / '.mim' / 'tools' / path.name
    return str(own) if own.is_file() else None


def _is_config(source: bytes) -> bool:
    """True if a Python file looks like a config: ``_base_``, or only plain settings."""
    try:
        with warnings.catch_warnings():
            # of escape sequences, which are for the program to say
            warnings.simplefilter('ignore')
            statements = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    if any(is_read_base(node) or _sets(node, '_base_') for node in statements):
        return True
    # such as the copy that MMEngine leaves in a work_dir
    is_idle = all(_is_import(node) or _is_plain(node) for node in statements)
    return is_idle and any(_sets(node, 'train_dataloader') for node in statements)


def _sets(statement: ast.stmt, name: str) -> bool:
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return (name,) in map(parse_chain, targets)


def _is_import(statement: ast.stmt) -> bool:
    return isinstance(statement, (ast.Import, ast.ImportFrom))


def _is_plain(statement: ast.stmt) -> bool:
    """True if a statement is a string, or assigns values or ``dict(...)`` to a name."""
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    return isinstance(statement, ast.Assign) and all(
        parse_chain(node.func) == ('dict',)
        for node in ast.walk(statement)
        if isinstance(node, ast.Call)
    )
