"""Tests that README and docs agree with the code: links, options, codes, settings."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from fakes.scripts import load_script
from mmgpu_hooks.memory.estimate import PEAK_FACTORS
from mmgpu_hooks.schema import recorded

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / 'docs' / 'en').rglob('*.md'))
LINKING = [*ROOT.glob('*.md'), *sorted((ROOT / 'docs').rglob('*.md'))]
"""Markdown pages, in every language, whose links are tested."""

reference = load_script('reference')


@pytest.mark.parametrize('name', reference.PAGES)
def test_a_page_of_the_reference_is_what_make_reference_writes(name: str):
    assert (reference.FOLDER / name).read_text() == reference.PAGES[name]()


def test_every_page_of_the_reference_is_generated():
    assert {page.name for page in reference.FOLDER.iterdir()} == {*reference.PAGES}


@pytest.mark.parametrize(
    'function',
    [answer.function for answer in reference.ANSWERS if answer.function],
)
def test_the_keys_of_an_answer_are_documented(function: str):
    documented = {key.name for key in reference.list_keys(function)}
    assert documented == {*reference.list_written(function)}


def test_every_command_that_answers_in_json_is_in_the_reference():
    from mmgpu_hooks.commands.main import COMMANDS, mmgpu

    context = click.Context(mmgpu)
    answering = {
        name
        for name in COMMANDS
        for option in mmgpu.get_command(context, name).params
        if '--format' in option.opts
    }
    documented = ', '.join(answer.commands for answer in reference.ANSWERS)
    assert {*documented.split(', ')} == answering


def test_the_scalars_of_the_reference_are_those_that_are_published():
    from mmgpu_hooks.hooks.scalars import SCALARS

    rows = re.findall(r'^\| `(\w+)`', reference.render_scalars(), re.MULTILINE)
    assert {*rows} == {*SCALARS}


def test_every_relative_link_leads_somewhere():
    broken = [
        (page.name, target)
        for page in LINKING
        for target in re.findall(r'\]\((?!https?:|#)([^)#]+)', page.read_text())
        if not (page.parent / target).exists()
    ]
    assert broken == []


def list_anchors(page: Path) -> set[str]:
    """Returns the anchors that GitHub generates for a page's headings."""
    text = re.sub(r'^```.*?^```', '', page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r'^#+ (.+)$', text, re.MULTILINE)
    return {re.sub(r'[^\w -]', '', h.lower()).replace(' ', '-') for h in headings}


def test_every_inner_link_leads_to_a_heading():
    broken = [
        (page.name, target, anchor)
        for page in LINKING
        for target, anchor in re.findall(
            r'\]\((?!https?:)([^)#]*)#([^)]+)\)', page.read_text()
        )
        if anchor not in list_anchors(page.parent / target if target else page)
    ]
    assert broken == []


def test_the_index_leads_to_every_page():
    folder = ROOT / 'docs' / 'en'
    linked = re.findall(r'\]\(([^)]+)\)', (folder / 'index.md').read_text())
    pages = {str(page.relative_to(folder)) for page in PAGES} - {'index.md'}
    assert sorted(linked) == sorted(pages)


def test_published_peaks_are_said_as_the_benchmark_has_them():
    table = (ROOT / 'benchmarks' / 'results' / 'memory.md').read_text()
    row = r'\| ([\w-]+): total off the published peak +\| (\S+)'
    factors = {name: 1 / (1 + float(off) / 100) for name, off in re.findall(row, table)}
    tried = [factors.pop(n) for n in ('ssdlite', 'retinanet-crop640', 'ssd300')]
    found = [(min(peaks), max(peaks)) for peaks in (factors.values(), tried)]
    for (least, most), said in zip(found, PEAK_FACTORS.values(), strict=True):
        assert said == (round(least, 2), round(most, 1))
        sentence = re.compile(r'{:g}\s+to\s+{:g}\s+times'.format(*said))
        for page in (ROOT / 'README.md', ROOT / 'docs' / 'en' / 'will-it-fit.md'):
            assert sentence.search(page.read_text()), page


NO_REAL_CARD = (
    'batch-size.md',
    'card-memory.md',
    'data-wait.md',
    'doctor.md',
    'faq.md',
    'fast-metric.md',
    'how-it-works.md',
    'memory-estimate.md',
    'other-tools.md',
    'pick-a-gpu.md',
    'profile.md',
    'ranks.md',
    'read-the-summary.md',
    'reference/evidence.md',
    'reference/rules.md',
    'reference/scalars.md',
    'sweep.md',
    'which-training.md',
    'will-it-fit.md',
)


def test_pages_link_what_no_real_card_has_shown():
    folder = ROOT / 'docs' / 'en'
    lacking = [
        name
        for name in NO_REAL_CARD
        if 'no-real-card.md)' not in (folder / name).read_text()
    ]
    assert lacking == []
    for page in ('README.md', 'CONTRIBUTING.md', 'docs/en/no-real-card.md'):
        assert 'no real card' in (ROOT / page).read_text(), page


KEPT = {
    'count': 'count',
    'total_s': 'sum',
    'mean_s': 'mean',
    'p50_s': 'median',
    'p95_s': '95th percentile',
}


def test_what_an_interval_keeps_is_what_the_page_says():
    assert set(KEPT) == set(recorded.DurationStats.__struct_fields__)
    *words, last = KEPT.values()
    page = (ROOT / 'docs' / 'en' / 'read-the-summary.md').read_text()
    assert f'keeps the {", ".join(words)} and {last} of its durations' in page
