"""The documents say what the code does. Run as a script, this writes docs/rules.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mmgpu_hooks.diagnosis import run_diagnosis, thresholds
from mmgpu_hooks.diagnosis.verdict import VERDICTS
from mmgpu_hooks.report import memory_estimate

ROOT = Path(__file__).resolve().parents[2]
RULES_PAGE = ROOT / 'docs' / 'rules.md'


def render_rules() -> str:
    """The page of all rules, out of their own docstrings."""
    parts = [
        '# What do the rule codes mean?\n\n'
        'Each finding carries the code of its rule; `mmgpu explain CODE` prints the '
        'same text.\n'
    ]
    for rule in run_diagnosis.RULES.values():
        text = rule.explanation.replace('``', '`')
        parts.append(f'## {rule.code}: {rule.title}\n\n{text}\n')
    return '\n'.join(parts)


def test_the_page_of_rules_is_up_to_date():
    assert RULES_PAGE.read_text() == render_rules()


def test_every_relative_link_leads_somewhere():
    broken = [
        (page.name, target)
        for page in [*ROOT.glob('*.md'), *(ROOT / 'docs').glob('*.md')]
        for target in re.findall(r'\]\((?!https?:|#)([^)#]+)', page.read_text())
        if not (page.parent / target).exists()
    ]
    assert broken == []


def test_published_peaks_are_said_as_the_benchmark_has_them():
    table = (ROOT / 'benchmarks' / 'results' / 'memory.md').read_text()
    row = r'\| ([\w-]+): total off the published peak +\| (\S+)'
    factors = {name: 1 / (1 + float(off) / 100) for name, off in re.findall(row, table)}
    said = r'1\.15 to 1\.9 times .*?(?:and )?6\.7\s+times for SSD300'
    assert f'{factors.pop("ssd300"):.1f}' == '6.7'
    assert 1.15 <= min(factors.values()) <= max(factors.values()) <= 1.9
    for page in (ROOT / 'README.md', ROOT / 'docs' / 'will-it-fit.md'):
        assert re.search(said, page.read_text(), re.DOTALL), page
    assert re.search(said, memory_estimate._BESIDE)


@pytest.mark.parametrize(
    'page',
    [
        'README.md',
        'CONTRIBUTING.md',
        'docs/batch-size.md',
        'docs/evidence-format.md',
        'docs/how-it-works.md',
        'docs/pick-a-gpu.md',
        'docs/read-the-summary.md',
        'docs/what-the-scalars-mean.md',
        'docs/will-it-fit.md',
    ],
)
def test_a_page_says_what_no_real_card_has_shown(page: str):
    assert 'no real card' in (ROOT / page).read_text().replace('\n', ' ')


def test_every_verdict_is_documented():
    page = (ROOT / 'docs' / 'recommend.md').read_text()
    assert [name for name in VERDICTS if f'`{name}`' not in page] == []


@pytest.mark.parametrize(
    'kind',
    [
        'RunRecord',
        'IntervalRecord',
        'HostLimits',
        'HostWindow',
        'WorkersWindow',
        'GpuWindow',
        'CardWindow',
        'CudaMemoryWindow',
        'ModelBytesRecord',
        'SaveRecord',
        'SaveAftermathRecord',
        'ValidationRecord',
        'EndRecord',
    ],
)
def test_every_field_of_the_evidence_is_documented(kind):
    from dataclasses import fields

    from mmgpu_hooks import records

    page = (ROOT / 'docs' / 'evidence-format.md').read_text()
    names = [field.name for field in fields(getattr(records, kind))]
    assert [name for name in names if f'`{name}`' not in page] == []


def test_every_threshold_has_its_reason():
    source = Path(thresholds.__file__).read_text()
    names = re.findall(r'^([A-Z_]+) = ', source, re.MULTILINE)
    reasons = re.findall(r'^[A-Z_]+ = .*\n"""(.+)', source, re.MULTILINE)
    assert len(names) == len(reasons) > 5


if __name__ == '__main__':
    RULES_PAGE.write_text(render_rules())
