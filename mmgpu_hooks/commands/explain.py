"""``mmgpu explain``: the text behind a rule code or a cause."""

from __future__ import annotations

import click

from mmgpu_hooks.commands.options import command
from mmgpu_hooks.judge.causes import CAUSES
from mmgpu_hooks.judge.rules import RULES
from mmgpu_hooks.schema.errors import UserError


@command('explain', '0 explained')
@click.argument('code', required=False)
def explain(code: str | None) -> None:
    """Say what a rule code such as MG101, or a cause such as oom_host, means.

    Without a code, list all of them.
    """
    if code is None:
        for entry in RULES.values():
            print(f'{entry.code}  {entry.title}')
        for cause in CAUSES.values():
            print(f'{cause.name:<16} {cause.title}')
    elif named := CAUSES.get(code.lower()):
        do = '\n'.join(f'- {text}' for text in named.do)
        print(f'{named.name}: {named.title}\n\n{named.page}\n\n{do}')
    elif asked := RULES.get(code.upper()):
        print(f'{asked.code}  {asked.title}\n\n{asked.explanation}'.replace('``', ''))
    else:
        raise UserError(
            f'expected a rule code or a cause, found {code!r}; "mmgpu explain" lists '
            'them.'
        )
