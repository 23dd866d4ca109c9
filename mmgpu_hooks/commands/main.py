"""``mmgpu``: the group of all commands, and the place where errors are printed."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence

import click

from mmgpu_hooks.commands import exit_codes
from mmgpu_hooks.commands.help import Context, translate_help
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.text import phrase, sentences
from mmgpu_hooks.show.text import STANDARD_OUTPUT, guarded_output
from mmgpu_hooks.show.words import MARKS, say, speak
from mmgpu_hooks.version import __version__

GROUPS = {
    phrase('Understand'): {
        'recommend': phrase('Judge a run and rewrite its config.'),
        'why': phrase('Say why a run ended badly or stands still.'),
        'report': phrase('Write a run as an HTML page.'),
        'compare': phrase('Say which of two runs is slower, and in what.'),
        'explain': phrase('Say what a rule code, a verdict or a cause means.'),
    },
    phrase('Change'): {
        'set': phrase('Change dataloader settings of a config.'),
        'enable': phrase('Add GPUEfficiencyHook to a config.'),
        'disable': phrase('Take GPUEfficiencyHook out of a config.'),
    },
    phrase('Measure'): {
        'verify': phrase(
            'Train two settings or configs in turns and measure the gain.'
        ),
        'sweep': phrase('Train a config with several settings and compare them.'),
        'save-bench': phrase(
            'Measure what the number of workers does to checkpoint saves.'
        ),
        'profile': phrase('Say what a training step is spent on, with torch.profiler.'),
    },
    phrase('Plan'): {
        'predict': phrase('Say what other settings of the loader would give.'),
        'estimate-memory': phrase('Estimate the memory of a training, without a GPU.'),
        'pick-gpu': phrase('Pick the free cards of this host.'),
    },
    phrase('Start'): {
        'run': phrase('Train with GPUEfficiencyHook, without touching a config.'),
        'demo': phrase('Show the whole way on a small data set.'),
        'doctor': phrase('Say what is wrong with this machine and environment.'),
    },
    phrase('Look after many'): {
        'runs': phrase('List many runs, those that waste most first.'),
    },
}
_ENDS = ('.', '?', '。', '\uff1f', MARKS[1])
"""Characters that can end a sentence, in any language."""
COMMANDS = [name for group in GROUPS.values() for name in group]


class _LazyGroup(click.Group):
    """Click group that imports a command's module only when that command is named."""

    context_class = Context

    def list_commands(self, ctx: click.Context) -> list[str]:
        return COMMANDS

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        # a module cannot be named as a builtin that it uses
        name = 'set_values' if cmd_name == 'set' else cmd_name.replace('-', '_')
        module = importlib.import_module(f'mmgpu_hooks.commands.{name}')
        found: click.Command = getattr(module, name)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # click 8.4 and later suggest commands that are imported; none is, here
        near = difflib.get_close_matches(args[0], COMMANDS)
        if near and args[0] not in COMMANDS:
            ctx.fail(
                phrase(
                    'No such command {name!r}. Did you mean {near:/}?',
                    name=args[0],
                    near=tuple(near),
                )
            )
        return super().resolve_command(ctx, args)

    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        for title, commands in GROUPS.items():
            with formatter.section(say(title)):
                rows = [(name, say(text)) for name, text in commands.items()]
                formatter.write_dl(rows, col_max=20)

    def get_help(self, ctx: click.Context) -> str:
        """Returns the help of the group in the user's language."""
        return click.Group.get_help(translate_help(self, ctx), ctx)


@click.group(
    'mmgpu',
    cls=_LazyGroup,
    invoke_without_command=True,
    context_settings={
        'help_option_names': ['-h', '--help'],
        'show_default': True,
        'max_content_width': 80,
    },
)
@click.version_option(__version__, message='%(version)s')
@click.pass_context
def mmgpu(ctx: click.Context) -> int | None:
    """Show where the time of an MMDetection training goes, and what to do."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        return exit_codes.BAD_INPUT
    return None


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one ``mmgpu`` command and returns its exit code.

    Args:
        argv: Arguments without the program's name; ``sys.argv`` by default.

    Returns:
        The exit code, see :mod:`mmgpu_hooks.commands.exit_codes`.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    name = ' '.join(['mmgpu', *(word for word in words[:1] if word in COMMANDS)])
    code = exit_codes.BAD_INPUT
    speak()
    with guarded_output():
        try:
            with _stopped_by_kill():
                return _run(words)
        except KeyboardInterrupt:
            sentence, code = say(phrase('stopped.')), exit_codes.INTERRUPTED
        except BrokenPipeError:
            # the reader (head, less) has seen enough
            _drop_output()
            return exit_codes.CLOSED_PIPE
        except click.UsageError as error:
            see = phrase('See "{command} --help".', command=name)
            sentence = say(sentences(_phrase_usage(error), see))
        except UserError as error:
            sentence = _end(error.said)
        except OSError as error:
            if error.filename == STANDARD_OUTPUT:
                _drop_output()
            # a write that fails names none
            place = error.filename or phrase('the folder for output')
            found = error.strerror or error
            sentence = say(
                phrase(
                    'expected to use {place}, found "{found}"; name another place.',
                    place=place,
                    found=found if isinstance(found, str) else str(found),
                )
            )
        with contextlib.suppress(OSError):
            print(f'{name}: {sentence}', file=sys.stderr, flush=True)
        return code


def _phrase_usage(error: click.UsageError) -> str:
    """Returns an error of click in the user's language, ended by a full stop."""
    if isinstance(error, click.MissingParameter) and error.param is not None:
        hint = error.param.get_error_hint(error.ctx)
        if isinstance(error.param, click.Argument):
            return phrase('Missing argument {parameter}.', parameter=hint)
        return phrase('Missing option {parameter}.', parameter=hint)
    # click puts it into a sentence of its own, as a string
    vars(error)['message'] = say(error.message)
    return _end(' '.join(error.format_message().split()))


def _end(text: str) -> str:
    """Returns an error's message in the user's language, ended by a full stop."""
    said = say(text)
    if said.endswith(_ENDS):
        return said
    return say(phrase('{error}.', error=said))


def _run(words: list[str]) -> int:
    if sys.stdout is None:
        raise UserError(phrase('expected a standard output, found it closed.'))
    try:
        with mmgpu.make_context('mmgpu', words) as ctx:
            code = mmgpu.invoke(ctx)
    except click.exceptions.Exit as stop:
        code = stop.exit_code
    sys.stdout.flush()
    return code or exit_codes.OK


def _drop_output() -> None:
    """Redirects standard output to the null device after writing to it has failed."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def _stopped_by_kill() -> Iterator[None]:
    """Context in which SIGTERM and a hangup raise KeyboardInterrupt, as Ctrl-C does.

    No training runs on, no temporary folder stays.
    """
    before = {}
    # only the main thread may
    with contextlib.suppress(ValueError):
        # Windows has no SIGHUP
        names = [name for name in ('SIGTERM', 'SIGHUP') if hasattr(signal, name)]
        for number in (getattr(signal, name) for name in names):
            # nohup has it ignored
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
