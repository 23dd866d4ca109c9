"""``mmgpu explain``: the text behind a rule code or a cause."""

from __future__ import annotations

import textwrap

import click

from mmgpu_hooks.commands.options import command
from mmgpu_hooks.judge.causes import CAUSES
from mmgpu_hooks.judge.rules import RULES
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.show.terminal import DEFAULT_WIDTH


@command('explain', '0 explained')
@click.argument('code', required=False)
def explain(code: str | None) -> None:
    """Say what a rule code such as MG101, a verdict or a cause of ``mmgpu why`` means.

    Without a code, list all of them.
    """
    if code is None:
        for entry in RULES.values():
            verdict = f' ({entry.verdict})' if entry.verdict else ''
            print(f'{entry.code}  {entry.title}{verdict}')
        for cause in CAUSES.values():
            print(f'{cause.name:<16} {cause.title}')
    elif named := CAUSES.get(code.lower()):
        do = '\n\n'.join(f'- {text}' for text in named.do)
        _print_page(f'{named.name}: {named.title}\n\n{named.page}\n\n{do}')
    elif asked := [
        rule
        for rule in RULES.values()
        if code.upper() == rule.code
        # data_bound_workers is data_bound, by MG101
        or (rule.verdict and code.lower().startswith(rule.verdict))
    ]:
        for one in asked:
            _print_page(f'{one.code}  {one.title}\n\n{one.explanation}')
    else:
        raise UserError(
            f'expected a rule code, a verdict or a cause, found {code!r}; '
            '"mmgpu explain" lists them.'
        )


def _print_page(text: str) -> None:
    for paragraph in text.replace('``', '').split('\n\n'):
        is_item = paragraph.startswith('- ')
        indent = '  ' if is_item else ''
        print(textwrap.fill(paragraph, DEFAULT_WIDTH, subsequent_indent=indent))
        print(end='' if is_item else '\n')
