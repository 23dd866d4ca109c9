"""Reader of the text that an HTML page shows."""

from __future__ import annotations

import re


def read_shown(page: str) -> str:
    """Returns a page's text and screen-reader labels, with bars between elements."""
    body = page.partition('<body')[2].partition('<script')[0]
    heard = re.findall('(?:aria-label|title)="([^"]*)"', body)
    shown = re.sub('<style.*?</style>', ' ', body, flags=re.DOTALL)
    return ' | '.join([re.sub('<[^>]*>', ' | ', shown), *heard])
