"""Tests the link check that ``make docs`` runs on the built HTML pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.scripts import load_script

ROOT = Path(__file__).resolve().parents[2]

links = load_script('links')


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """Folder with a built HTML page in Chinese and a picture, as link targets."""
    (tmp_path / 'zh').mkdir()
    (tmp_path / 'zh' / 'why.html').write_text('<h2 id="卡住">卡住</h2>', 'utf-8')
    (tmp_path / 'a b.png').touch()
    return tmp_path


@pytest.mark.parametrize(
    'tag',
    [
        '<a href="zh/why.html">',
        '<a href="zh/why.html#">',
        '<a href="zh/why.html#卡住">',
        '<a href="zh/../zh/why.html?v=1#%E5%8D%A1%E4%BD%8F">',
        '<a href="#here">',
        '<img src="a%20b.png">',
        '<a href="https://example.org/no.html#no">',
        '<a href="//example.org/no.html">',
        '<a href="mailto:a@example.org">',
    ],
)
def test_a_link_that_leads_somewhere_is_fine(built: Path, tag: str):
    (built / 'index.html').write_text(f'<p id="here">{tag}', 'utf-8')
    assert list(links.list_broken(built)) == []


@pytest.mark.parametrize(
    ('tag', 'said'),
    [
        ('<a href="no.html">', 'no.html: there is no such file'),
        ('<a href="zh">', 'zh: there is no such file'),
        ('<img src="no.png">', 'no.png: there is no such file'),
        ('<a href="#no">', '#no: the page has no such anchor'),
        ('<a href="zh/why.html#no">', 'zh/why.html#no: the page has no such anchor'),
    ],
)
def test_a_link_that_leads_nowhere_is_named(built: Path, tag: str, said: str):
    (built / 'zh' / 'index.html').write_text('<a href="../index.html">', 'utf-8')
    (built / 'index.html').write_text(tag, 'utf-8')
    assert list(links.list_broken(built)) == [f'index.html: {said}']


def test_a_folder_without_pages_is_no_success(tmp_path: Path):
    assert [*links.list_broken(tmp_path)] == [f'{tmp_path}: no page of HTML is there']
