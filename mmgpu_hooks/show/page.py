"""A run as a page: one file, no script, no request to anywhere."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from mmgpu_hooks.show.charts import COLORS, can_draw, draw
from mmgpu_hooks.show.document import SIGNS, Section
from mmgpu_hooks.show.recommendation import Answer
from mmgpu_hooks.show.run_sections import describe_page
from mmgpu_hooks.show.text import bind_units, visible
from mmgpu_hooks.version import __version__

GENERATOR = 'mmgpu_hooks'
"""By which a page is known as one of ours."""

_NO_BREAK = '\u00a0'


def is_page(beginning: bytes) -> bool:
    """Whether a file that begins so is a page of ours.

    Args:
        beginning: Some kilobytes of it.
    """
    return f'name="generator" content="{GENERATOR} '.encode() in beginning


def render_page(answer: Answer, label: str) -> str:
    """The page of a run, with the label as its title."""
    # late, because no other command needs it
    from jinja2 import Environment
    from markupsafe import Markup

    def shown(value: Any) -> Any:
        """Text without control characters, not broken before a unit."""
        if hasattr(value, '__html__'):
            return value
        return bind_units(visible(value), _NO_BREAK)

    def picture(section: Section) -> Markup:
        # what is drawn is escaped already
        if section.chart is None or not can_draw():
            return Markup('')
        return Markup(draw(section.chart, section.name))

    environment = Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, finalize=shown
    )
    template = environment.from_string(_read_own('page.html'))
    verdict, *sections = describe_page(answer)
    return template.render(
        can_draw=can_draw(),
        generator=f'{GENERATOR} {__version__}',
        picture=picture,
        sections=sections,
        signs=SIGNS,
        style=Markup(_style()),
        title=label,
        verdict=verdict,
        version=__version__,
    )


def _style() -> str:
    light, dark = (
        ''.join(f'--{role}:{pair[is_dark]};' for role, pair in COLORS.items())
        for is_dark in (False, True)
    )
    return (
        f':root{{{light}}}\n'
        f'@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n'
        f'{_read_own("page.css")}'
    )


def _read_own(name: str) -> str:
    """A part of the page that is kept in its own language."""
    return files('mmgpu_hooks.show').joinpath(name).read_text(encoding='utf-8')
