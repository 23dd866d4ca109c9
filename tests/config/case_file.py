"""Reads test cases of config rewrites from files, one case per file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from mmgpu_hooks.config.settings import parse_assignments

CASES = sorted(Path(__file__).with_name('cases').glob('*.case'))


class Case(NamedTuple):
    """Test case of a config rewrite: settings, and the config before and after."""

    settings: dict
    files: dict
    """Texts of the base configs, by file name."""

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
