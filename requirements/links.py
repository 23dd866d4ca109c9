"""Checks the internal links in the HTML pages that ``make docs`` has built.

    python requirements/links.py docs/_build

Sphinx tries those within a language; links to the other one it takes as they are.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """Parsed HTML page: its anchors, and the addresses that it links to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors = {''}
        """Names that a link to this page may have behind ``#``; empty for its top."""
        self.addresses: list[str] = []
        """Addresses of links, pictures, scripts and style sheets, as written."""
        self.feed(path.read_text(encoding='utf-8'))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collects the ids and the ``href`` and ``src`` addresses of an element."""
        for name, value in attrs:
            if name == 'id' and value:
                self.anchors.add(value)
            if name in ('href', 'src') and value:
                self.addresses.append(value)


def list_broken(folder: Path) -> Iterator[str]:
    """Yields a line for each broken internal link in the pages of a folder."""
    folder = folder.resolve()
    pages = {path: Page(path) for path in sorted(folder.rglob('*.html'))}
    if not pages:
        yield f'{folder}: no page of HTML is there'
    for path, page in pages.items():
        for address in dict.fromkeys(page.addresses):
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            # without a path, it leads to a place on the page itself
            target = path.parent / unquote(parts.path) if parts.path else path
            target = Path(os.path.normpath(target))
            found = pages.get(target)
            if not target.is_file():
                said = 'there is no such file'
            elif found is not None and unquote(parts.fragment) not in found.anchors:
                said = 'the page has no such anchor'
            else:
                continue
            yield f'{path.relative_to(folder)}: {address}: {said}'


def main() -> int:
    """Prints all broken links; returns 1 if there are any, else 0."""
    broken = list(list_broken(Path(sys.argv[1])))
    for line in broken:
        print(line, file=sys.stderr)
    return 1 if broken else 0


if __name__ == '__main__':
    sys.exit(main())
