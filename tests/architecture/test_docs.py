"""The documents say what the code does. Run as a script, this writes two."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from mmgpu_hooks.judge.rules import RULES
from mmgpu_hooks.judge.verdict_names import VERDICTS
from mmgpu_hooks.memory.estimate import PEAK_FACTORS
from mmgpu_hooks.schema import recorded
from mmgpu_hooks.schema.lines import KINDS

ROOT = Path(__file__).resolve().parents[2]
RULES_PAGE = ROOT / 'docs' / 'en' / 'rules.md'
EVIDENCE_PAGE = ROOT / 'docs' / 'en' / 'evidence-format.md'


def render_rules() -> str:
    """The page of all rules, out of their own docstrings."""
    parts = [
        '# What do the rule codes mean?\n\n'
        'Each finding carries the code of its rule; `mmgpu explain CODE` prints the '
        "same text. What is said of a card has met mocks (NVIDIA's driver, FakeGPU) "
        'and made-up statistics, and no real card yet.\n'
    ]
    for rule in RULES.values():
        text = rule.explanation.replace('``', '`')
        parts.append(f'## {rule.code}: {rule.title}\n\n{text}\n')
    return '\n'.join(parts)


def render_evidence() -> str:
    """The page of all that is recorded, out of the docstrings of the schema."""
    tree = ast.parse(Path(recorded.__file__).read_text())
    title, text = _docstring(tree).split('\n', 1)
    parts = [f'# {title}\n{text}']
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    lines = {kind.__name__: f'`{name}`' for name, kind in KINDS.items()}
    nested = {
        name: name
        for name in classes
        if name not in (*lines, 'Recorded', 'EvidenceLine')
    }
    for name, heading in {**lines, **nested}.items():
        node = classes[name]
        rows = [
            f'| `{name}` | {_describe_type(kind)} | {text} |'
            for name, kind, text in _fields(node)
        ]
        table = '\n'.join(['| field | holds | meaning |', '| --- | --- | --- |', *rows])
        parts.append(f'## {heading}\n\n{_docstring(node)}\n\n{table}')
    return '\n\n'.join(parts) + '\n'


def _docstring(node: ast.Module | ast.ClassDef) -> str:
    return (ast.get_docstring(node) or '').replace('``', '`')


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, ast.expr, str]]:
    """Name and type of each field, with the string literal behind it."""
    for field, after in zip(node.body, [*node.body[1:], None]):
        if isinstance(field, ast.AnnAssign):
            value = after.value if isinstance(after, ast.Expr) else None
            text = str(value.value) if isinstance(value, ast.Constant) else ''
            text = ' '.join(text.split()).replace('``', '`').replace('`None`', '`null`')
            text = re.sub(r':\w+:(`\w+`)', r'\1', text)
            yield ast.unparse(field.target), field.annotation, text


def _describe_type(hint: ast.expr) -> str:
    if isinstance(hint, ast.Name):
        return _TYPES.get(hint.id) or f'[{hint.id}](#{hint.id.lower()})'
    assert isinstance(hint, ast.Subscript)
    inner = hint.slice.elts if isinstance(hint.slice, ast.Tuple) else [hint.slice]
    kind = ast.unparse(hint.value)
    if kind == 'Optional':
        return _describe_type(inner[0])
    form = {'Mapping': 'object: {} by name', 'Tuple': 'list: {}'}[kind]
    return form.format(_describe_type(inner[-1] if kind == 'Mapping' else inner[0]))


_TYPES = {
    'Count': 'whole number',
    'Number': 'number',
    'str': 'text',
    'bool': 'true or false',
    'Ending': 'text',
    'TunedAction': 'text',
    'TunedReason': 'text',
    'TunedLoader': 'text',
    'float': 'number',
    'Plain': 'true or false, number or text',
}


def test_the_page_of_rules_is_up_to_date():
    assert RULES_PAGE.read_text() == render_rules()


def test_every_relative_link_leads_somewhere():
    broken = [
        (page.name, target)
        for page in [*ROOT.glob('*.md'), *(ROOT / 'docs' / 'en').glob('*.md')]
        for target in re.findall(r'\]\((?!https?:|#)([^)#]+)', page.read_text())
        if not (page.parent / target).exists()
    ]
    assert broken == []


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
    'README.md',
    'CONTRIBUTING.md',
    'docs/en/batch-size.md',
    'docs/en/evidence-format.md',
    'docs/en/faq.md',
    'docs/en/fast-metric.md',
    'docs/en/how-it-works.md',
    'docs/en/pick-a-gpu.md',
    'docs/en/read-the-summary.md',
    'docs/en/what-the-scalars-mean.md',
    'docs/en/will-it-fit.md',
)


def test_pages_say_what_no_real_card_has_shown():
    for page in NO_REAL_CARD:
        assert 'no real card' in (ROOT / page).read_text().replace('\n', ' '), page


def test_every_verdict_is_documented():
    page = (ROOT / 'docs' / 'en' / 'recommend.md').read_text()
    assert [name for name in VERDICTS if f'`{name}`' not in page] == []


def test_the_page_of_the_evidence_is_up_to_date():
    assert EVIDENCE_PAGE.read_text() == render_evidence()


if __name__ == '__main__':
    RULES_PAGE.write_text(render_rules())
    EVIDENCE_PAGE.write_text(render_evidence())


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
