"""Tests that README and docs agree with the kept benchmark results."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import readme

OVERHEAD = """# Cost

| figure | value | unit | target | verdict | note |
| --- | --- | --- | --- | --- | --- |
| iteration, mean | 31.5 | us | | | raw |
| interval, beyond an iteration | 1,250.04 | ms | | | |
| iteration of 30 ms with the hook over without | 0.25 | % | | | CI -0.01 to +0.51 |
"""
WHOLE = """# Whole

| figure | value | unit | target | verdict | note |
| --- | --- | --- | --- | --- | --- |
| slower | 0 | | | | |
| dies: cause right | 1 | | | | |
| dies: the cure is named | 1 | | | | |
| dies: trains to its end with it | 0 | | | | |
| hangs: cause right | 1 | | | | |
| hangs: the cure is named | 1 | | | | |
| hangs: trains to its end with it | 1 | | | | |

| training | before | after | less | tune=True | iteration | verdict | changed |
| --- | --- | --- | --- | --- | --- | --- | --- |
| demo | 80.0 s | 40.0 s | 50 % | 50.0 s | 2 -> 1 ms | data_bound | num_workers=1 |
| storage | 10.0 s | 8.0 s | 20 % | | 2 -> 1 ms | data_bound | num_workers=6 |
| fine | 10.0 s | | | | 2 ms | balanced | nothing |

What was said of demo:

```text
Data-bound
```
"""


HOST = """# Host

| figure | value | unit | target | verdict | note |
| --- | --- | --- | --- | --- | --- |
| 13 scalars after 300,000 iterations, ratio | 0.01 | | | | |
| batch of 8 in the training process, ratio | 0.4 | | | | |
| RTMDet-tiny: step, ratio | 0.2 | | | | |
| RTMDet-tiny: step, ratio without foreach | 0.7 | | | | |
| DINO: step, ratio | 0.255 | | | | |
| RTMDet-tiny: average, ratio | 0.19 | | | | |
"""


def test_pages_say_what_the_kept_tables_say():
    for page in readme.PAGES:
        assert readme.render_page(page.read_text()) == page.read_text(), (
            f'{page.name}: python -m benchmarks.readme writes it'
        )


def test_every_text_has_its_place_on_a_page():
    pages = ''.join(page.read_text() for page in readme.PAGES)
    marks = re.findall('<!-- ([a-z-]+) -->', pages)
    assert {*marks} - {'end'} == {*readme.TEXTS}


def test_every_text_is_filled_in():
    root = readme.ROOT
    pages = [*root.glob('README*.md'), *(root / 'docs').rglob('*.md')]
    empty = [
        (page.name, mark)
        for page in pages
        for mark in re.findall(
            r'<!-- ([\w-]+) -->\s*<!-- end -->', page.read_text(encoding='utf-8')
        )
    ]
    assert empty == []


@pytest.mark.parametrize(
    ('mark', 'said'),
    [
        (
            'overhead',
            '0.25 % (-0.01 to 0.51) of an iteration of 30 ms on two busy cores: 32 us '
            'per iteration, and 1250.0 ms per log line more.',
        ),
        (
            'whole',
            '**Of 3 ordinary trainings** ([the table](benchmarks/results/whole.md)), 2 '
            'took 20 to 50 % less time after doing what their summary or `mmgpu '
            'recommend` said; in 1 nothing was changed. Of 2 more, which die or hang, '
            '`mmgpu why` named the cause of 2 and the cure of 2; with it 1 trained to '
            'the end.',
        ),
        ('demo', '```text Data-bound ```'),
        (
            'host',
            "an optimizer's step takes 0.20 to 0.26 times the host CPU (lists of "
            'tensors, as on a card), an average 0.19 to 0.19, a batch of 8 in the '
            'training process 0.40, histories after 300,000 iterations 0.010; [the '
            'table](benchmarks/results/host.md).',
        ),
        (
            'demo-gain',
            '80.0 s before, 40.0 s after: 50 % less time. With `tune=True` in the '
            'place of a second training: 50.0 s ([it tunes itself](docs/en/tune.md)).',
        ),
    ],
)
def test_figures_come_from_the_tables(tmp_path: Path, mark: str, said: str):
    (tmp_path / 'overhead.md').write_text(OVERHEAD)
    (tmp_path / 'whole.md').write_text(WHOLE)
    (tmp_path / 'host.md').write_text(HOST)
    page = f'- Before: <!-- {mark} -->of old<!-- end --> after'
    new = readme.render_page(page, tmp_path)
    found = re.fullmatch(f'- Before: <!-- {mark} -->(.*)<!-- end --> after', new, re.S)
    assert found
    assert ' '.join(found[1].split()) == said
    assert readme.render_page(new, tmp_path) == new
    assert max(map(len, new.splitlines())) <= 120 + len('<!-- end --> after')


def test_a_text_without_a_table_stays_and_an_unknown_one_is_an_error(tmp_path: Path):
    page = '<!-- whole -->as it was<!-- end -->'
    assert readme.render_page(page, tmp_path) == page
    with pytest.raises(KeyError, match='what'):
        readme.render_page('<!-- what --><!-- end -->', tmp_path)
