"""Renders a run, a sweep or many runs as one self-contained HTML file.

No script either, but where a table sorts: that one is named by its hash in the page's
own policy, and no other may run.

Text cannot become markup: jinja2 escapes all that is put into the page.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from mmgpu_hooks.recommend.answer import Answer
from mmgpu_hooks.schema.many_runs import ManyRuns
from mmgpu_hooks.schema.text import phrase
from mmgpu_hooks.schema.tried import Sweep
from mmgpu_hooks.show.charts import COLORS, can_draw, draw
from mmgpu_hooks.show.document import SIGNS, Section
from mmgpu_hooks.show.run_sections import describe_page
from mmgpu_hooks.show.runs_page import describe_runs_page
from mmgpu_hooks.show.sweep_page import describe_sweep_page
from mmgpu_hooks.show.text import bind_units, visible
from mmgpu_hooks.show.words import current, say
from mmgpu_hooks.version import __version__

_TEXTS = {
    'skip': phrase('Skip to the verdict'),
    'sections': phrase('Sections'),
    'verdict': phrase('Verdict'),
    'no_charts': phrase(
        'Charts are left out, because matplotlib cannot be imported: their figures '
        "stand in tables. To have them: pip install 'mmgpu_hooks[plots]'"
    ),
    'nothing': phrase('Nothing is known of it: the notes say why.'),
    'written': phrase('Written by mmgpu_hooks {version}.', version=__version__),
    'problem': phrase('problem'),
    'notice': phrase('notice'),
    'ok': phrase('ok'),
    'unknown': phrase('unknown'),
}
"""Fixed texts of an HTML page, and display names of severities, by key."""

_MARK = b'name="generator" content="mmgpu_hooks '


def is_page(beginning: bytes) -> bool:
    """True if a file begins like a page that this package has written.

    Args:
        beginning: Some kilobytes of it.
    """
    return _MARK in beginning


def render_page(answer: Answer, label: str) -> str:
    """Renders the HTML page of a run, with its label as title."""
    return _render(describe_page(answer), label, 'report')


def render_sweep_page(sweep: Sweep, label: str) -> str:
    """Renders the HTML page of a sweep, with its label as title."""
    return _render(describe_sweep_page(sweep), label, 'sweep')


def render_runs_page(answer: ManyRuns, label: str) -> str:
    """Renders the HTML page of many runs, with their label as title."""
    return _render(describe_runs_page(answer), label, 'runs')


def _render(described: Sequence[Section], label: str, kind: str) -> str:
    # late, because no other command needs it
    from jinja2 import Environment
    from markupsafe import Markup

    def shown(value: Any) -> Any:
        """Returns a value as text for the page, with visible control characters."""
        if hasattr(value, '__html__'):
            return value
        return bind_units(visible(say(value)), '\u00a0')

    environment = Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, finalize=shown
    )
    verdict, *sections = described
    pictures = {}
    for section in sections if can_draw() else ():
        if section.chart is not None:
            # what is drawn is escaped already
            pictures[section.name] = Markup(draw(section.chart, section.name))
    is_sortable = any(
        section.table and section.table.is_sortable for section in sections
    )
    script = _read_own('sort.js') if is_sortable else ''
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.from_string(_read_own('page.html')).render(
        can_draw=can_draw(),
        kind=kind,
        language=current().language,
        pictures=pictures,
        script=Markup(script),
        script_hash=Markup(f'sha256-{digest}'),
        sections=sections,
        signs=SIGNS,
        style=Markup(_style()),
        texts=_TEXTS,
        title=label,
        verdict=verdict,
        version=__version__,
    )


def _style() -> str:
    light = ''.join(f'--{role}:{color.light};' for role, color in COLORS.items())
    dark = ''.join(f'--{role}:{color.dark};' for role, color in COLORS.items())
    return (
        f':root{{{light}}}\n'
        f'@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n'
        f'{_read_own("page.css")}'
    )


def _read_own(name: str) -> str:
    """Reads a file of this package that the page is made of, such as ``page.css``."""
    return files('mmgpu_hooks.show').joinpath(name).read_text(encoding='utf-8')
