"""Sphinx configuration of the documentation sites, one per language (``make docs``).

    sphinx-build -c docs -D language=zh_CN docs/zh_cn docs/_build/zh_cn

Pages are plain Markdown, which GitHub shows as well. So nothing in them is Sphinx's:
the sidebar is made from the index, and links out of the folder of a language lead to
the site of the other one, or to the repository.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.search.en import SearchEnglish

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
LANGUAGES = {'en': 'English', 'zh_cn': '简体中文'}
"""Documentation folders, with the name of each language in that language."""


def read_constant(name: str, file: str) -> str:
    """Returns the string that a module assigns to a name, without importing it."""
    found = re.search(rf"^{name} = '([^']*)'", (ROOT / file).read_text(), re.MULTILINE)
    if found is None:
        raise RuntimeError(f"{file}: no line `{name} = '...'`")
    return found[1]


ADDRESS = read_constant('ADDRESS', 'setup.py')

project = 'mmgpu_hooks'
release = read_constant('__version__', 'mmgpu_hooks/version.py')
html_title = f'{project} {release}'
html_theme = 'furo'
extensions = ['myst_parser']
templates_path = ['_templates']
# every heading, as on GitHub
myst_heading_anchors = 6
html_copy_source = False
html_show_copyright = False
# there are no index entries in Markdown
html_use_index = False


def add_sidebar(app: Sphinx, page: str, source: list[str]) -> None:
    """Adds the sidebar to an index page: its links, grouped by its headings."""
    if page != 'index':
        return
    _, *parts = re.split(r'^## (.+)\n', source[0], flags=re.MULTILINE)
    for heading, body in zip(parts[::2], parts[1::2]):
        pages = re.findall(r'^- \[.+\]\(([\w/-]+)\.md\)', body, re.MULTILINE)
        if pages:
            entries = '\n'.join(pages)
            source[0] += (
                f'\n```{{toctree}}\n:hidden:\n:caption: {heading}\n\n{entries}\n```\n'
            )


def name_sections(app: Sphinx, doctree: nodes.document) -> None:
    """Gives sections the anchors that GitHub generates, as their first ids.

    Docutils' own ids are ASCII alone: ``id3`` for a Chinese heading.
    """
    for section in doctree.findall(nodes.section):
        slug = section.get('slug')
        if slug and (slug in section['ids'] or slug not in doctree.ids):
            section['ids'] = [slug, *(name for name in section['ids'] if name != slug)]


def lead_out(app: Sphinx, doctree: nodes.document) -> None:
    """Replaces links to files that are not pages of the current language."""
    for link in [
        *doctree.findall(addnodes.pending_xref),
        *doctree.findall(addnodes.download_reference),
    ]:
        file = find_file(app, link)
        if file is not None:
            link.replace_self(make_link(app.env.docname, link, file))


def find_file(app: Sphinx, link: nodes.Element) -> Path | None:
    """Returns the file that a link leads to, if it is no page of this language."""
    if isinstance(link, addnodes.download_reference):
        return Path(app.env.relfn2path(link['reftarget'], app.env.docname)[1])
    if link['refdomain'] != 'doc':
        return None
    file = Path(os.path.normpath(Path(app.srcdir, f'{link["reftarget"]}.md')))
    return None if file.is_relative_to(app.srcdir) else file


def make_link(page: str, link: nodes.Element, file: Path) -> list[nodes.Node]:
    """Returns a link to a page in another language, or to a file in the repository.

    While the repository has no address, the file is named.

    Args:
        page: With the link.
        link: As MyST made it.
        file: In the repository.
    """
    anchor = link.get('reftargetid')
    fragment = f'#{anchor}' if anchor else ''
    if file.suffix == '.md' and file.is_relative_to(DOCS):
        target = file.relative_to(DOCS).with_suffix('.html').as_posix()
        address = climb(page) + target + fragment
    else:
        name = file.relative_to(ROOT).as_posix()
        if not ADDRESS:
            words = [] if link.astext() == name else [*link.children, nodes.Text(' → ')]
            return [*words, nodes.literal('', name)]
        address = f'{ADDRESS}/blob/v{release}/{name}{fragment}'
    return [nodes.reference('', '', *link.children, refuri=address)]


def climb(page: str) -> str:
    """Returns the relative path from a page to the folder of all language sites."""
    return '../' * (page.count('/') + 1)


def link_languages(
    app: Sphinx,
    page: str,
    template: str,
    context: dict[str, object],
    doctree: nodes.document | None,
) -> None:
    """Adds links to the same page in other languages to the template's context."""
    others = dict[str, str]()
    for folder, language in LANGUAGES.items():
        if folder != Path(app.srcdir).name and (DOCS / folder / 'index.md').exists():
            same = page if (DOCS / folder / f'{page}.md').exists() else 'index'
            others[language] = f'{climb(page)}{folder}/{same}.html'
    context['other_languages'] = others


class SearchPairs(SearchEnglish):
    """Sphinx search language for Chinese, which indexes pairs of characters.

    Sphinx takes jieba for it, of 19 MB. English words on the same pages stay words.
    """

    # the name stays English: Sphinx 9.0 names the stemmer of the page after it (#14229)
    lang = 'zh'
    js_splitter_code = r"""
var splitQuery = (query) =>
  (query.match(/[\u4e00-\u9fff]+|(?:(?![\u4e00-\u9fff])[\p{L}\p{N}_])+/gu) || [])
    .flatMap((run) =>
      /^[\u4e00-\u9fff]{2}/.test(run)
        ? [...run].slice(1).map((sign, index) => run[index] + sign)
        : [run]);
"""

    def split(self, input: str) -> list[str]:  # noqa: A002 (Sphinx's name)
        """Splits a text into English words, Chinese characters and character pairs."""
        terms = list[str]()
        for run in re.findall(r'[\u4e00-\u9fff]+|[^\W\u4e00-\u9fff]+', input):
            is_chinese = '\u4e00' <= run[0] <= '\u9fff'
            terms += [*run, *map(''.join, zip(run, run[1:]))] if is_chinese else [run]
        return terms


def setup(app: Sphinx) -> None:
    """Connects the functions of this file to Sphinx's events."""
    app.add_search_language(SearchPairs)
    app.connect('source-read', add_sidebar)
    # before Sphinx collects anchors and files to download
    app.connect('doctree-read', name_sections, priority=100)
    app.connect('doctree-read', lead_out, priority=100)
    app.connect('html-page-context', link_languages)
