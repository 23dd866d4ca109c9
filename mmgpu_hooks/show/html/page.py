"""The whole page: one file, nothing beside it, no request to anywhere."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from mmgpu_hooks.show.html.changes_section import render_changes
from mmgpu_hooks.show.html.host_sections import render_host, render_ranks
from mmgpu_hooks.show.html.judged_sections import (
    render_findings,
    render_notes,
    render_settings,
)
from mmgpu_hooks.show.html.loader_sections import render_loader
from mmgpu_hooks.show.html.memory_section import render_memory
from mmgpu_hooks.show.html.payload import pack_timeline
from mmgpu_hooks.show.html.saves_section import render_saves
from mmgpu_hooks.show.html.time_sections import render_ledger, render_over_time
from mmgpu_hooks.show.html.verdict_section import render_verdict
from mmgpu_hooks.show.html.what_if_section import render_what_if
from mmgpu_hooks.show.markup import Markup, join, script_json, tag
from mmgpu_hooks.show.pictures.envelope import find_reaches
from mmgpu_hooks.show.pictures.palette import css_variables
from mmgpu_hooks.show.pictures.timeline import Timeline
from mmgpu_hooks.show.reported_run import ReportedRun
from mmgpu_hooks.version import __version__

GENERATOR = 'mmgpu_hooks'
"""By which a page is known as one of ours."""

SECTIONS = {
    'verdict': 'Verdict',
    'changes': 'What to change',
    'time': 'Where the time went',
    'over-time': 'Over time',
    'what-if': 'Other numbers of workers',
    'loader': 'Inside the loader',
    'memory': 'Memory',
    'saves': 'Checkpoint saves',
    'ranks': 'Ranks',
    'host': 'The host',
    'findings': 'Findings',
    'settings': 'Settings',
    'notes': 'Notes',
}
"""Of the page, in their order: ``id`` and how the list of sections calls it."""


def is_page(beginning: bytes) -> bool:
    """Whether a file that begins so is a page of ours.

    Args:
        beginning: Some kilobytes of it.
    """
    return f'name="generator" content="{GENERATOR} '.encode() in beginning


def render_page(
    runs: Sequence[ReportedRun], timelines: Sequence[Timeline | None]
) -> str:
    """The page of one run, or of several side by side.

    Args:
        runs: At least one; their labels differ.
        timelines: Of :func:`mmgpu_hooks.show.pictures.timeline.fold_timelines`.
    """
    reaches = find_reaches(timelines)
    data = [
        pack_timeline(timeline, reaches) if timeline else None for timeline in timelines
    ]
    names = ', '.join(run.label for run in runs)
    sections = join(
        render_verdict(runs),
        render_changes(runs),
        render_ledger(runs),
        render_over_time(runs, timelines, reaches),
        render_what_if(runs),
        render_loader(runs),
        render_memory(runs),
        render_saves(runs),
        render_ranks(runs),
        render_host(runs),
        render_findings(runs),
        render_settings(runs),
        render_notes(runs),
    )
    body = tag(
        'body',
        tag('a', 'Skip to the verdict', href='#main', class_='skip'),
        tag('header', tag('p', tag('b', 'mmgpu'), ' report'), tag('p', names)),
        _list_sections(),
        tag('main', sections, id='main', tabindex='-1'),
        tag('footer', tag('p', f'Written by mmgpu_hooks {__version__}.')),
        tag('script', script_json(data), type='application/json', id='data'),
        tag('script', _script()),
    )
    page = tag('html', _head(f'{names}: mmgpu report'), body, lang='en')
    return f'<!DOCTYPE html>\n{page}\n'


def _list_sections() -> Markup:
    items = (
        tag('li', tag('a', title, href=f'#{name}')) for name, title in SECTIONS.items()
    )
    return tag('nav', tag('ol', *items), aria_label='Sections')


def _head(title: str) -> Markup:
    style = _style()
    # nothing may be fetched, and no script run but the one below
    policy = (
        "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; "
        f'style-src {_digest(style)}; script-src {_digest(_script())}'
    )
    return tag(
        'head',
        tag('meta', charset='utf-8'),
        tag('meta', http_equiv='Content-Security-Policy', content=policy),
        tag('meta', name='viewport', content='width=device-width, initial-scale=1'),
        tag('meta', name='color-scheme', content='light dark'),
        tag('meta', name='generator', content=f'{GENERATOR} {__version__}'),
        tag('title', title),
        # or a browser asks the host for one
        tag('link', rel='icon', href='data:,'),
        tag('style', style),
    )


def _digest(source: str) -> str:
    """As a content security policy names an inline element."""
    digest = hashlib.sha256(source.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


@cache
def _style() -> Markup:
    light, dark = css_variables(dark=False), css_variables(dark=True)
    return Markup(
        f':root{{{light}}}\n'
        f'@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n'
        f'{_read_own("page.css")}'
    )


@cache
def _script() -> Markup:
    return Markup(_read_own('page.js'))


def _read_own(name: str) -> str:
    """A part of the page that is kept in its own language."""
    return files('mmgpu_hooks.show.html').joinpath(name).read_text(encoding='utf-8')
