"""``mmgpu explain``: prints the help text on a rule code, a verdict or a cause."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import click

from mmgpu_hooks.commands.help import limit_width, say_paragraphs
from mmgpu_hooks.commands.options import command
from mmgpu_hooks.judge.causes import CAUSES
from mmgpu_hooks.judge.rules import RULES
from mmgpu_hooks.judge.verdict_names import VERDICTS
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.text import phrase
from mmgpu_hooks.show.terminal import DEFAULT_WIDTH
from mmgpu_hooks.show.text import narrow, widen
from mmgpu_hooks.show.words import say

_BY_NO_RULE = {
    'compute_bound': phrase(
        'Data is at hand when it is needed, so the step sets the speed; ``mmgpu '
        'profile CONFIG`` says what it consists of.'
    ),
    'not_enough_evidence': phrase(
        'Too few iterations were recorded to judge the run; the verdict says how many '
        'more it needs.'
    ),
}


@command('explain', '0 explained')
@click.argument('code', required=False)
def explain(code: str | None) -> None:
    """Say what a rule code such as MG101, a verdict or a cause of ``mmgpu why`` means.

    Without a code, list all of them.
    """
    if code is None:
        for rule in RULES.values():
            verdict = f' ({rule.verdict})' if rule.verdict else ''
            print(f'{rule.code}  {say(rule.title)}{verdict}')
        titles = {**VERDICTS, **{cause.name: cause.title for cause in CAUSES.values()}}
        width = max(map(len, titles))
        for name, title in titles.items():
            print(f'{name:<{width}}  {say(title)}')
        return
    pages = list(_find_pages(code))
    if not pages:
        raise UserError(
            phrase(
                'expected a rule code, a verdict or a cause, found {code}; "mmgpu '
                'explain" lists them.',
                code=repr(code),
            )
        )
    for page in pages:
        _print_page(page)


def _find_pages(code: str) -> Iterator[str]:
    titles = {say(title).lower(): name for name, title in VERDICTS.items()}
    name = titles.get(code.lower(), code.lower())
    if cause := CAUSES.get(name):
        do = '\n\n'.join(f'- {say(text)}' for text in cause.do)
        title, page = say(cause.title), say_paragraphs(cause.page)
        yield f'{cause.name}: {title}\n\n{page}\n\n{do}'
    if name in VERDICTS:
        yield f'{name}: {say(VERDICTS[name])}'
    if name in _BY_NO_RULE:
        yield say(_BY_NO_RULE[name])
    for rule in RULES.values():
        # data_bound_workers is data_bound, by MG101
        is_of_rule = rule.verdict and name.startswith(rule.verdict)
        if code.upper() == rule.code or is_of_rule:
            page = say_paragraphs(rule.explanation)
            yield f'{rule.code}  {say(rule.title)}\n\n{page}'


def _print_page(text: str) -> None:
    width = limit_width(DEFAULT_WIDTH)
    for paragraph in text.replace('``', '').split('\n\n'):
        is_item = paragraph.startswith('- ')
        indent = '  ' if is_item else ''
        lines = textwrap.fill(widen(paragraph), width, subsequent_indent=indent)
        print(narrow(lines))
        print(end='' if is_item else '\n')
