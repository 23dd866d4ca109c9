"""Reads the written-out cases: one file per spelling, its parts behind headings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from mmgpu_hooks.config.settings import parse_assignments

CASES = sorted(Path(__file__).with_name('cases').glob('*.case'))


class Case(NamedTuple):
    """One spelling: what is asked, and two configs."""

    settings: dict
    files: dict
    """The base configs by name."""

    before: str
    after: str
    unchanged: str


def read_case(path: Path) -> Case:
    head, *parts = re.split(r'^# ---- (.*)\n', path.read_text(), flags=re.MULTILINE)
    texts = dict(zip(parts[::2], parts[1::2]))
    return Case(
        parse_assignments(head.removeprefix('# set ').split()),
        {name: text for name, text in texts.items() if name.endswith('.py')},
        texts['before'],
        texts['after'],
        texts['unchanged'],
    )
