"""``make messages``: extracts, updates, checks and compiles the translation catalogs.

The template of all catalogs is made of the sources by Babel, and of what is no literal
where it is shown: docstrings of rules and causes, help of commands. Babel is needed
here alone; compiled catalogs are in the repository.
"""

from __future__ import annotations

import inspect
import string
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from babel.messages import Catalog
from babel.messages.extract import extract_from_dir
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from mmgpu_hooks.commands.main import COMMANDS, mmgpu  # noqa: E402
from mmgpu_hooks.judge.causes import CAUSES  # noqa: E402
from mmgpu_hooks.judge.hanging_frames import HANGING_FRAMES  # noqa: E402
from mmgpu_hooks.judge.rules import RULES  # noqa: E402
from mmgpu_hooks.schema.text import SEPARATORS, SPACE, UNKNOWN  # noqa: E402

PACKAGE = ROOT / 'mmgpu_hooks'
LOCALE = PACKAGE / 'locale'
TEMPLATE = LOCALE / 'mmgpu_hooks.pot'
KEYWORDS = {'phrase': (1,), 'worded': (1,), 'Noun': (1, 2), 'rule': (2,)}
"""Positions of translatable arguments, by function name, for Babel's extraction."""
CLICK = ('core', 'decorators', 'exceptions', 'formatting', 'parser', 'types')
"""Modules of click whose messages are translated, too."""


def extract() -> Catalog:
    """Returns a catalog of all translatable messages of the package and of click."""
    catalog = Catalog(project='mmgpu_hooks', charset='utf-8')
    found = extract_from_dir(PACKAGE, [('**.py', 'python')], keywords=KEYWORDS)
    for file, line, message, _, context in found:
        catalog.add(message, locations=[(f'mmgpu_hooks/{file}', line)], context=context)
    for words in list_written():
        catalog.add(words)
    methods = [(f'{name}.py', 'python') for name in CLICK]
    click_keywords = {'_': None, 'ngettext': (1, 2)}
    folder = Path(inspect.getfile(click)).parent
    for _, _, message, _, context in extract_from_dir(
        folder, methods, keywords=click_keywords
    ):
        catalog.add(message, context=context)
    context, space = SPACE
    catalog.add(space, context=context)
    for words in (*SEPARATORS.values(), UNKNOWN):
        catalog.add(words)
    return catalog


def list_written() -> Iterator[str]:
    """Yields translatable texts of rules, causes, hanging frames and commands' help."""
    for rule in RULES.values():
        yield from _list_paragraphs(rule.explanation)
    for cause in CAUSES.values():
        yield cause.title
        yield from _list_paragraphs(cause.page)
        yield from cause.do
    for frame in HANGING_FRAMES:
        yield frame.reason
        yield frame.do
    with click.Context(mmgpu) as ctx:
        for command in (mmgpu, *(mmgpu.get_command(ctx, name) for name in COMMANDS)):
            assert command is not None
            yield from _list_paragraphs(command.help or '')
            codes = getattr(command.epilog, 'facts', {}).get('codes')
            if codes:
                yield codes
            for param in command.params:
                if isinstance(param, click.Option) and param.help:
                    yield param.help


def _list_paragraphs(words: str) -> Iterator[str]:
    for paragraph in inspect.cleandoc(words).split('\n\n'):
        if paragraph.startswith('\b\n'):
            yield paragraph.removeprefix('\b\n')
        elif paragraph:
            yield ' '.join(paragraph.split())


def find_faults(catalog: Catalog) -> Iterator[str]:
    """Yields translations whose placeholders differ from those of the message."""
    for message in catalog:
        forms = message.id if isinstance(message.id, tuple) else (message.id,)
        said = (
            message.string if isinstance(message.string, tuple) else (message.string,)
        )
        allowed = [_list_fields(form) for form in forms]
        for words in said if forms[0] else ():
            if words and _list_fields(words) not in allowed:
                yield f'{forms[0]!r}: other fields in {words!r}'


def _list_fields(template: str) -> set[str]:
    try:
        return {name for _, name, _, _ in string.Formatter().parse(template) if name}
    except ValueError:
        # braces of a config: it is no format
        return set()


def update(catalog: Catalog, template: Catalog) -> None:
    """Updates the messages in a language's catalog to those of the template.

    Its date stays where none came or went, so that nothing differs.
    """
    date, before = catalog.creation_date, _list_ids(catalog)
    catalog.update(template, no_fuzzy_matching=True)
    if _list_ids(catalog) == before:
        catalog.creation_date = date


def _list_ids(catalog: Catalog) -> set[object]:
    return {(message.id, message.context) for message in catalog}


def drop_empty_plurals(catalog: Catalog) -> None:
    """Removes plural messages without a translation from a catalog.

    Babel compiles the singular for them, so that a language with one form would say
    "6 save".
    """
    for message in list(catalog):
        is_plural = isinstance(message.id, tuple)
        if is_plural and not all(message.string or ('',)):
            catalog.delete(message.id, message.context)


def main() -> int:
    """Writes the template and all catalogs; returns 1 if a translation is faulty."""
    template = extract()
    LOCALE.mkdir(exist_ok=True)
    with TEMPLATE.open('wb') as stream:
        write_po(stream, template, width=88, omit_header=False, no_location=True)
    code = 0
    for path in sorted(LOCALE.glob('*/LC_MESSAGES/mmgpu_hooks.po')):
        with path.open('rb') as stream:
            catalog = read_po(stream, locale=path.parents[1].name)
        update(catalog, template)
        for fault in find_faults(catalog):
            print(f'{path}: {fault}', file=sys.stderr)
            code = 1
        with path.open('wb') as stream:
            write_po(stream, catalog, width=88, no_location=True, ignore_obsolete=True)
        drop_empty_plurals(catalog)
        with path.with_suffix('.mo').open('wb') as stream:
            write_mo(stream, catalog)
    return code


if __name__ == '__main__':
    sys.exit(main())
