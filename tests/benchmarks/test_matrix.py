"""Tests the table of ``make matrix``: pytest reports, known failures, pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import matrix
from benchmarks.matrix import DETECTION, PARTS, STACKS, TESTS, TOYS, Row

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / 'benchmarks' / 'results' / 'matrix.md'
PAGES = [ROOT / 'docs' / name / 'versions.md' for name in ('en', 'zh_cn')]

REPORT = """\
<testsuites><testsuite>
<testcase classname="tests.training.test_a" name="test_b[x-1]" time="1.5" />
<testcase classname="tests.training.test_a" name="test_c" time="0.5">
<failure message="assert 1 == 2" /></testcase>
<testcase classname="tests.training.test_a" name="test_d" time="0.0">
<error message="failed on setup" /></testcase>
<testcase classname="tests.training.test_a" name="test_e" time="0.0">
<skipped type="pytest.skip" message="no&#10;mmdet" /></testcase>
<testcase classname="" name="tests.training.test_f" time="0.0">
<error message="collection failure" /></testcase>
</testsuite></testsuites>
"""


def test_a_report_is_read(tmp_path: Path):
    path = tmp_path / 'report.xml'
    path.write_text(REPORT)
    report = matrix.read_report(path)
    assert report.passed == ['test_a::test_b[x-1]']
    assert report.failed == ['test_a::test_c', 'test_a::test_d', 'test_f']
    assert report.skipped == {'test_a::test_e': 'no mmdet'}
    assert report.seconds == 2.0


@pytest.mark.parametrize(
    ('test', 'reason'),
    [
        ('test_a::test_b[x]', 'of the case'),
        ('test_a::test_b[y]', 'of the test'),
        ('test_a::test_c', None),
        ('test_d::test_e[z]', 'of the file'),
        ('test_d', 'of the file'),
    ],
)
def test_a_known_failure_is_found_by_case_test_or_file(test: str, reason: str | None):
    known = {
        'test_a::test_b[x]': 'of the case',
        'test_a::test_b': 'of the test',
        'test_d': 'of the file',
    }
    assert matrix.find_reason(test, known) == reason


def test_the_page_says_what_fails_and_what_was_not_tried(
    monkeypatch: pytest.MonkeyPatch,
):
    stack = matrix.Stack(
        'a stack', ('3.9',), (), (), known={'test_a::test_b': 'torch 1 has no compile'}
    )
    monkeypatch.setattr(matrix, 'STACKS', {'one': stack, 'two': stack})
    versions = {'python': '3.9.18', 'torch': '1.7.1', 'onedl-mmengine': '0.10.12'}
    failed = ['test_a::test_b[x]', 'test_a::test_b[y]']
    known = Row('one', TOYS, versions, passed=7, failed=failed, date='2026-11-28')
    worse = Row('two', TOYS, versions, passed=7, failed=[*failed, 'test_c::test_d'])
    skipped = Row('two', DETECTION, versions, passed=1, skipped={'no mmdet': 2})
    none = Row('one', DETECTION, problem='not tried')
    again = Row('two', DETECTION, versions, passed=1, retried=['test_e::test_f'])
    assert [row.verdict for row in (known, worse, skipped, none)] == [
        'passes, but for what is known',
        'FAILS',
        'passes',
        'not tried',
    ]
    assert worse.unexpected == ['test_c::test_d']
    assert Row('one', TOYS, versions).verdict == 'FAILS'
    page = matrix.render_page([known, none, worse, skipped, again], 'Linux x86_64')
    assert 'onedl-mmengine 0.10.12' in page
    assert (
        '- a stack, toys: 2 fail: torch 1 has no compile (`test_a::test_b`)\n' in page
    )
    assert '- a stack, toys: 1 fail: no reason is noted (`test_c::test_d`)' in page
    assert '- a stack, MMDetection: 2: no mmdet' in page
    assert '- a stack, MMDetection: `test_e::test_f`' in page
    assert '- date: 2026-11-28\n' in page


def test_a_failure_is_tried_again_by_its_path():
    assert (
        matrix.name_path('test_a::test_b[x]') == 'tests/training/test_a.py::test_b[x]'
    )
    assert matrix.name_path('test_f') == 'tests/training/test_f.py'


def test_what_is_named_is_there():
    for name in (name for names in TESTS.values() for name in names):
        file, _, test = name.partition('::')
        text = (ROOT / file).read_text()
        assert re.search(rf'^def {test or "test_"}', text, re.MULTILINE), name
    for stack in STACKS.values():
        for key in stack.known:
            file, _, test = key.partition('::')
            text = (ROOT / matrix.TRAINING / f'{file}.py').read_text()
            assert f'def {test.partition("[")[0] or "test_"}' in text, key
    pinned = (ROOT / 'requirements' / 'mminstall.txt').read_text()
    assert STACKS['pinned'].openmmlab[0] in pinned.splitlines()


def read_rows(page: Path) -> list[list[str]]:
    """Returns the rows of a page's first table without its outer columns.

    Without the first two and the last one."""
    table = re.search(r'(?:^\|.*\n)+', page.read_text(), re.MULTILINE)
    assert table is not None
    _, _, *lines = table[0].splitlines()
    return [[cell.strip() for cell in line.split('|')[3:-2]] for line in lines]


def test_pages_get_the_rows_in_their_language(tmp_path: Path):
    for page in PAGES:
        target = tmp_path / page.parent.name / page.name
        target.parent.mkdir()
        target.write_text('# A\n\n| a |\n| --- |\n| b |\n\n| c |\n| --- |\n')
    rows = [Row('oldest', TOYS, {'torch': '1.7.1'}, passed=3, date='2026-11-28')]
    matrix.write_pages(rows, tmp_path)
    english, chinese = ((tmp_path / page.parent.name / page.name) for page in PAGES)
    assert '| the oldest torch | toys ' in english.read_text()
    assert '| 最旧的 torch | 小模型 ' in chinese.read_text()
    assert read_rows(english) == read_rows(chinese) == [['1.7.1', '3', '0', '0', '0.0']]
    for page in (english, chinese):
        assert page.read_text().endswith(' |\n\n| c |\n| --- |\n')


def test_every_title_has_its_word():
    titles = {stack.title for stack in STACKS.values()}
    assert titles <= {*matrix.WORDS['zh_cn']}


@pytest.mark.parametrize('page', PAGES, ids=lambda path: path.parent.name)
def test_a_page_has_the_rows_of_the_kept_table(page: Path):
    rows = read_rows(page)
    assert len(rows) == len(PARTS)
    assert rows == read_rows(KEPT)
