"""Parameter types, options and decorators that several commands share."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from reprlib import repr as short
from typing import Any, TypeVar

import click

from mmgpu_hooks.commands.help import Context, translate_help
from mmgpu_hooks.model.bounds import MOST_BATCH, MOST_WORKERS
from mmgpu_hooks.schema import values
from mmgpu_hooks.schema.text import Text, phrase, worded

Function = TypeVar('Function', bound=Callable[..., Any])
Decorator = Callable[[Function], Function]

_WHOLE = r'[+-]?\d{1,18}'

SLURM = 'slurm'
"""Name of the click parameter that holds the value of ``--slurm``."""
TYPED_WORDS = 'mmgpu_hooks.words'
"""Key in click's ``ctx.meta`` of the command line words as the user typed them."""


class SeveralOption(click.Option):
    """Click option that takes all values that follow it: ``--num-workers 0 2``.

    Args:
        pattern: What a further value begins with; any other word is none.
    """

    def __init__(self, *args: Any, pattern: str = '[^-]|$', **more: Any) -> None:
        super().__init__(*args, **{**more, 'multiple': True})
        self.pattern = pattern


class Slurm(click.Option):
    """Click option ``--slurm OPTIONS``, which makes the command run as one SLURM job.

    Args:
        count_cpus: Takes the parsed arguments of the command; checks them, and returns
            the CPUs that the job needs, or ``None`` where that is unknown.
        expect: Takes them, too, and checks what costs no time, before SLURM is asked
            for an unfinished job.
    """

    def __init__(
        self,
        *args: Any,
        count_cpus: Callable[[Mapping[str, Any]], int | None],
        expect: Callable[[Mapping[str, Any]], None],
        **more: Any,
    ) -> None:
        super().__init__(*args, **more)
        self.count_cpus = count_cpus
        self.expect = expect


class Command(click.Command):
    """Click command with multi-value options, which can also run as a SLURM job.

    With ``--slurm`` it becomes a job once its arguments were parsed.
    """

    context_class = Context

    def get_help(self, ctx: click.Context) -> str:
        """Returns the help of the command in the user's language."""
        return click.Command.get_help(translate_help(self, ctx), ctx)

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command here or, if ``--slurm`` is given, within a SLURM job."""
        options = ctx.params.pop(SLURM, None)
        if options is None:
            return super().invoke(ctx)
        # late: other commands do without
        from mmgpu_hooks.commands.slurm import run_as_job

        (slurm,) = (option for option in self.params if isinstance(option, Slurm))
        slurm.expect(ctx.params)
        words = drop_option(ctx.meta[TYPED_WORDS], slurm.opts[0])
        count_cpus = functools.partial(slurm.count_cpus, ctx.params)
        return run_as_job(ctx.info_name or '', words, options, count_cpus)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses ``--num-workers 0 2`` as ``--num-workers 0 --num-workers 2``."""
        ctx.meta[TYPED_WORDS] = tuple(args)
        many = {
            name: option.pattern
            for option in self.params
            if isinstance(option, SeveralOption)
            for name in option.opts
        }
        found, name = list[str](), ''
        for word in args:
            if name and found[-1] != name:
                # one more value, or what comes after them
                name = name if re.match(many[name], word) else ''
                found += [name] * bool(name)
            if not name and word in many:
                name = word
            found.append(word)
        return super().parse_args(ctx, found)


class WholeNumber(click.IntRange):
    """Click type for a whole number in ASCII digits; it refuses ``1_000``."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        """Converts text to a whole number in the option's range; refuses other text."""
        if not isinstance(value, int) and not re.fullmatch(_WHOLE, value, re.A):
            said = phrase('expected a whole number, found {found}', found=short(value))
            self.fail(said, param, ctx)
        most = values.LARGEST if self.max is None else int(self.max)
        taken = values.Whole(int(self.min or 0), most)
        if not taken.takes(int(value)):
            said = phrase('expected {expected}, found {found}', taken, found=int(value))
            self.fail(said, param, ctx)
        return super().convert(value, param, ctx)


def command(
    name: str, codes: str, **more: Any
) -> Callable[[Callable[..., Any]], click.Command]:
    """Decorator for all commands: sets the name, and appends exit codes to the help."""
    epilog = phrase(
        'Exit codes: {codes}, 2 input that cannot be used (one sentence on standard '
        'error says why), 130 Ctrl-C.',
        codes=worded(codes),
    )
    return click.command(name, cls=Command, epilog=epilog, **more)


def parsed(
    pattern: str, parse: Callable[[re.Match[str]], Any], expected: Text
) -> Callable[[Any], Any]:
    """Makes a click type that matches text against a regex and parses the match.

    Args:
        pattern: All of the text matches it, in any case.
        parse: What makes the value of the match; ``None`` is refused, too.
        expected: The form, for the error.
    """

    def convert(text: Any) -> Any:
        # digits and letters of other scripts would match, too
        match = re.fullmatch(pattern, str(text).strip(), re.IGNORECASE | re.ASCII)
        value = parse(match) if match else None
        if value is None:
            raise click.BadParameter(
                phrase(
                    'expected {expected}, found {found}',
                    expected=expected,
                    found=short(text),
                )
            )
        return value

    return convert


def above_0(expected: Text) -> Callable[[Any], Any]:
    """Makes a click type for a number above 0, described as ``expected`` in errors."""
    number = r'\d{1,9}(?:\.\d{1,9})?'
    return parsed(number, lambda match: float(match[0]) or None, expected)


def _parse_size(match: re.Match[str]) -> int | None:
    base = 1000 if match[3].upper() == 'B' else 1024
    return round(float(match[1]) * base ** (1 + 'KMGT'.index(match[2].upper()))) or None


def flag(name: str, text: str) -> Decorator[Any]:
    """Decorator that adds an option without a value (a switch) to a command."""
    return click.option(name, is_flag=True, help=text)


PATH = click.Path(path_type=Path)
SECONDS = above_0(phrase('seconds above 0'))
WHOLE = parsed(_WHOLE, lambda match: int(match[0]), phrase('a whole number'))
NUMBER = parsed(
    r'[+-]?\d{1,18}(?:\.\d{1,18})?(?:e[+-]?\d{1,2})?',
    lambda match: float(match[0]),
    phrase('a number'),
)
"""Click type for a number as Python prints it, without ``nan`` and ``inf``."""
SIZE = parsed(
    r'(\d{1,9}(?:\.\d{1,3})?) ?([KMGT])(i?B|)',
    _parse_size,
    phrase('a size such as 24GiB'),
)
"""Click type for a size in bytes; 24GiB and 24g are 24 x 2^30, 24GB are 24 x 10^9."""

as_format = click.option(
    '--format', 'form', type=click.Choice(('text', 'json')), default='text'
)
config_argument = click.argument('config', type=PATH)
run_folders_argument = click.argument(
    'run_folders', type=PATH, nargs=-1, required=True, metavar='RUN_FOLDER...'
)
fresh = flag('--fresh', 'Forget what was measured before.')
time_limit = click.option(
    '--time-limit',
    type=SECONDS,
    default=600.0,
    metavar='SECONDS',
    help='Limit of each training, its start included.',
)


def work_dir(text: str) -> Decorator[Any]:
    """Decorator that adds ``--work-dir`` to a command, with ``text`` as its help."""
    return click.option('--work-dir', type=PATH, metavar='DIR', help=text)


def several(
    name: str, kind: click.ParamType[Any], text: str, **more: Any
) -> Decorator[Any]:
    """Decorator that adds an option with one or more values to a command."""
    metavar = 'N...' if isinstance(kind, click.IntRange) else '[off|on]...'
    return click.option(
        name, cls=SeveralOption, type=kind, metavar=metavar, help=text, **more
    )


assignments = click.option(
    '--set',
    'assignments',
    cls=SeveralOption,
    # no path: a config may stand behind
    pattern=r'[\w.]+=',
    metavar='KEY=VALUE',
    help='Setting to measure, such as train_dataloader.num_workers=8; repeatable.',
)
num_workers = functools.partial(several, '--num-workers', WholeNumber(0, MOST_WORKERS))
batch_size = functools.partial(several, '--batch-size', WholeNumber(1, MOST_BATCH))


def drop_option(words: Sequence[str], name: str) -> list[str]:
    """Returns a command line's words without an option and its value.

    Examples:
        >>> drop_option(['a.py', '--slurm=-p gpu', '--fresh'], '--slurm')
        ['a.py', '--fresh']
        >>> drop_option(['--slurm', '-p gpu', 'a.py'], '--slurm')
        ['a.py']
    """
    kept, rest = list[str](), iter(words)
    for word in rest:
        if word == name:
            next(rest, None)
        elif word == '--':
            return [*kept, word, *rest]
        elif not word.startswith(f'{name}='):
            kept.append(word)
    return kept


def _split_words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise click.BadParameter(
            phrase(
                'expected options of sbatch as a shell takes them, found {text!r}: '
                '{error}',
                text=text,
                error=error,
            )
        ) from error


def slurm(
    count_cpus: Callable[[Mapping[str, Any]], int | None],
    expect: Callable[[Mapping[str, Any]], None] = lambda given: None,
) -> Decorator[Any]:
    """Decorator that adds the option ``--slurm`` to a command."""
    return click.option(
        '--slurm',
        SLURM,
        cls=Slurm,
        count_cpus=count_cpus,
        expect=expect,
        type=_split_words,
        metavar='OPTIONS',
        help="Run as one SLURM job with these options of sbatch, such as '-p gpu "
        "--gres=gpu:1 -t 1:00:00'. Output and exit code are the job's.",
    )
