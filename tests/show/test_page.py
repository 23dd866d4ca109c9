from __future__ import annotations

import re
from collections import defaultdict
from html.parser import HTMLParser

import pytest

from fakes.replaced import replace
from fakes.reported import make_full_ranks, make_full_run, make_reported
from fakes.runs import make_evidence
from fakes.saves import make_save
from mmgpu_hooks.judge.run import Run, TransformCost
from mmgpu_hooks.schema.judged import (
    Change,
    Diagnosis,
    Finding,
    Recommendation,
    Verdict,
)
from mmgpu_hooks.schema.text import phrase, quoted
from mmgpu_hooks.show import page as page_module
from mmgpu_hooks.show.page import is_page, render_page

EVIL = '</script><script>alert(1)</script><!--<img src=x onerror=alert(2)>"\'&\u2028'


class Page(HTMLParser):
    """Parsed HTML page: its elements, and its text by section."""

    def __init__(self, markup: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: dict[str, str] = defaultdict(str)
        self._open: list[str] = []
        self._section = ''
        self.feed(markup)

    def handle_starttag(self, name, attributes):
        known = dict(attributes)
        self.tags.append((name, known))
        if name not in ('meta', 'link'):
            self._open.append(name)
        if name == 'section':
            self._section = known['id'] or ''

    def handle_endtag(self, name):
        assert self._open.pop() == name

    def handle_data(self, data):
        self.words[self._section] += data

    def all(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.tags if tag == name]


SAID = {
    'verdict': '32 % of an iteration',
    'changes': 'num_workers',
    'time': 'EMAHook',
    'over-time': '',
    'what-if': '3new',
    'loader': 'LoadImageFromFile',
    'memory': 'allocated, peak',
    'saves': 'waits for one',
    'ranks': 'slowest',
    'host': 'usable cores8',
    'findings': 'MG101',
    'advice': 'LoadImageFromFile',
    'settings': 'num_workers=2',
    'notes': 'A note.',
}


@pytest.mark.parametrize('has_matplotlib', [True, False])
def test_every_section_has_its_figures(has_matplotlib, monkeypatch):
    monkeypatch.setattr(page_module, 'can_draw', lambda: has_matplotlib)
    page = Page(render_page(make_full_run(), 'run1'))
    assert [section['id'] for section in page.all('section')] == list(SAID)
    assert len(page.all('svg')) == 3 * has_matplotlib
    for section, said in SAID.items():
        words = page.words[section].replace('\xa0', ' ')
        assert said in words.replace('\n', ''), section
    assert ('pip install' in page.words['verdict']) is not has_matplotlib


def test_sections_pictures_and_tables_have_names_for_a_screen_reader():
    page = Page(render_page(make_full_run(), 'run1'))
    ids = [known['id'] for _, known in page.tags if known.get('id')]
    assert len(ids) == len(set(ids))
    links = [known['href'] for known in page.all('a')]
    assert links[0] == '#main'
    assert {link[1:] for link in links} <= set(ids)
    named = [known.get('aria-labelledby') for known in page.all('section')[1:]]
    assert set(named) <= set(ids)
    pictures = page.all('svg')
    assert all(known['role'] == 'img' and known['aria-label'] for known in pictures)
    assert len(page.all('caption')) == len(page.all('table'))
    assert all(known['scope'] in ('col', 'row') for known in page.all('th'))


def test_a_section_without_evidence_says_why_it_is_empty():
    words = Page(render_page(make_reported(make_evidence(2)), 'run1')).words
    for section, reason in {
        'what-if': 'The time or the CPU of loading a batch is unknown',
        'saves': 'No checkpoint was saved',
        'loader': 'Nothing is known of it',
        'notes': 'GPU unknown: training runs on the CPU',
    }.items():
        assert reason in words[section], section
    assert 'ranks' not in words


def test_nothing_is_fetched_and_no_script_may_run():
    page = render_page(make_full_run(), 'run1')
    assert is_page(page.encode()[:4096])
    assert not is_page(b'<!DOCTYPE html><html><head>')
    assert not re.search(r'https?:|//[a-z]|@import|url\(', page.split('<body>')[0])
    assert not re.search(r' (src|srcset|href)="(?!#|data:,)', page)
    parsed = Page(page)
    (policy,) = (
        known['content'] or ''
        for known in parsed.all('meta')
        if known.get('http-equiv') == 'Content-Security-Policy'
    )
    assert policy.startswith("default-src 'none';")
    assert 'script-src' not in policy
    assert not parsed.all('script')


def evil_page(text: str) -> Page:
    """Returns the page of a run whose strings are all the given text."""
    first = make_full_ranks()[0]
    paths = dict.fromkeys(('work_dir', 'config_path', 'optim_wrapper'), text)
    odd = {key: {text: text} for key in ('versions', 'unknown')}
    record = replace(first.run, **paths, **odd)
    first = replace(first, run=record, save_records=(make_save(name=text),))
    summary = Run(first)
    by_hook_s = {text: next(iter(summary.figures.by_hook_s.values()))}
    summary = summary.replaced(figures=replace(summary.figures, by_hook_s=by_hook_s))
    summary.__dict__['transforms'] = [TransformCost(text, 1.0)]
    said = phrase('{title}: {why}', title=quoted(text), why=quoted(text))
    verdict = Verdict('data_bound', said, text)
    diagnosis = Diagnosis(
        verdict, (Finding(text, quoted(text), text, quoted(text), 0.5),)
    )
    answer = replace(
        make_reported(make_full_ranks()),
        run_path=text,
        diagnosis=diagnosis,
        recommendation=Recommendation(
            (Change(text, text, text, quoted(text), text, (text,)),)
        ),
        summary=summary,
        notes=(text,),
    )
    return Page(render_page(answer, text))


def tags_of(page: Page) -> list[str]:
    """Returns the names of all elements outside charts."""
    drawn = {'g', 'path', 'text', 'use', 'defs', 'clippath', 'rect'}
    return [name for name, _ in page.tags if name.lower() not in drawn]


@pytest.mark.parametrize(
    'text', [EVIL, '\x00\ud800\x1b\u202e', '<b>', '{{ 7 * 7 }}', '--cfg "a b"']
)
def test_hostile_text_adds_no_element(text):
    page = evil_page(text)
    assert tags_of(page) == tags_of(evil_page('plain'))
    assert not page.all('script')
    assert not re.search('[\x00\x1b\u202e\ud800]', str(page.words))
