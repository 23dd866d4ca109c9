"""What an HTML page shows."""

from __future__ import annotations

import re


def read_shown(page: str) -> str:
    """What a page shows, to those who hear it, too; bars are where an element ends."""
    body = page.partition('<body')[2].partition('<script')[0]
    heard = re.findall('(?:aria-label|title)="([^"]*)"', body)
    shown = re.sub('<style.*?</style>', ' ', body, flags=re.DOTALL)
    return ' | '.join([re.sub('<[^>]*>', ' | ', shown), *heard])
