"""Tests that Chinese pages have the headings, code and links of the English ones.

Links and anchors of all pages are tried in ``test_docs.py``. What needs a reader, the
words, no test can hold.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENGLISH = ROOT / 'docs' / 'en'
CHINESE = ROOT / 'docs' / 'zh_cn'
READMES = ROOT / 'README.md', ROOT / 'README_zh-CN.md'
SCALARS = ENGLISH / 'reference' / 'scalars.md', CHINESE / 'scalars.md'
"""English page on the logged scalars, which is generated, and its Chinese version."""

FENCE = re.compile(r'^ *```(\w*)\n(.*?)^ *```', re.MULTILINE | re.DOTALL)
COMMAND = re.compile(
    r'(?!mmgpu [\w-]+:)(?:\w+=\S+ )*(?:mmgpu|python|pip|make|export|sbatch) '
)
"""Regular expression of a command line to type (``mmgpu sweep: ...`` is output)."""
OUTPUT = ('', 'text', 'console')
"""Kinds of fenced blocks that may hold output in the page's language."""
NUMBER = re.compile(r'(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?', re.ASCII)
FIGURE = re.compile(
    rf'({NUMBER.pattern})\s*(%|[GMK]i?B|[GM]Hz|W|[mu]?s)(?!\w)', re.ASCII
)
NINE_IN_TEN = '9 times in 10', '90 %'
"""Name of the prediction interval in an output, in English and in Chinese."""
LINK = re.compile(r'\]\((?!https?:|#)([^)#\s]+)[^)]*\)(（英文）)?')
NAME = re.compile(r'^\| `(\w+)` \| (\S+) \|', re.MULTILINE)


class Block(NamedTuple):
    """Fenced block of a Markdown page."""

    kind: str
    """Language named after the fence, such as ``console``; may be empty."""
    body: str


class Page(NamedTuple):
    """Markdown page, split into fenced blocks and prose."""

    path: Path
    blocks: list[Block]
    prose: str
    """Text of the page outside its fenced blocks."""

    @property
    def levels(self) -> list[int]:
        """Level of each heading, in the order of the page."""
        return [len(signs) for signs in re.findall(r'^(#+) ', self.prose, re.MULTILINE)]

    @property
    def commands(self) -> list[str]:
        """Commands in fenced blocks, without prompts and comments."""
        lines = [
            line.removeprefix('$ ')
            for block in self.blocks
            for line in re.sub(r'\\\n\s*', '', block.body).splitlines()
        ]
        return [drop_comment(line) for line in lines if COMMAND.match(line)]

    @property
    def named_commands(self) -> set[str]:
        """Commands in inline code of the prose."""
        code = re.findall(r'`([^`]+)`', self.prose)
        commands = (' '.join(words.split()) for words in code)
        return {command for command in commands if COMMAND.match(command)}

    @property
    def code(self) -> list[Block]:
        """Code blocks, which are equal in all languages except for their comments."""
        return [
            Block(block.kind, '\n'.join(map(drop_comment, block.body.splitlines())))
            for block in self.blocks
            if block.kind not in OUTPUT
        ]

    @property
    def figures(self) -> Counter[str]:
        """Numbers with units in the prose, with their counts."""
        text = re.sub(r'\]\([^)]*\)', ']', self.prose)
        return Counter(f'{number} {unit}' for number, unit in FIGURE.findall(text))

    @property
    def outputs(self) -> list[Counter[str]]:
        """Numbers in each quoted output, with their counts."""
        return [
            Counter(NUMBER.findall(block.body.replace(*NINE_IN_TEN)))
            for block in self.blocks
            if block.kind in OUTPUT
        ]

    @property
    def targets(self) -> set[Path]:
        """Files of this repository that the page links to."""
        return {find_target(self.path, link) for link, _ in LINK.findall(self.prose)}


def drop_comment(line: str) -> str:
    """Returns a line of code without its comment."""
    return re.sub(r'(^|\s+)# .*', '', line).rstrip()


def find_target(page: Path, link: str) -> Path:
    """Returns the absolute path that a page's relative link points to."""
    return Path(os.path.normpath(page.parent / link))


def read_page(path: Path) -> Page:
    """Reads a Markdown page and splits it into blocks and prose."""
    text = path.read_text(encoding='utf-8')
    blocks = [Block(kind, body) for kind, body in FENCE.findall(text)]
    return Page(path, blocks, FENCE.sub('', text))


def find_chinese(page: Path) -> Path:
    """Returns the Chinese version of a page; the page itself if there is none."""
    if page == SCALARS[0]:
        return SCALARS[1]
    if not page.is_relative_to(ENGLISH):
        return page
    chinese = CHINESE / page.relative_to(ENGLISH)
    return chinese if chinese.exists() else page


NAMES = sorted(path.relative_to(CHINESE).as_posix() for path in CHINESE.rglob('*.md'))
PAIRS = {name: (ENGLISH / name, CHINESE / name) for name in NAMES}
del PAIRS[SCALARS[1].name]
PAIRS[READMES[1].name] = READMES
ALL = [READMES[1], *(CHINESE / name for name in NAMES)]


@pytest.fixture(params=PAIRS)
def pair(request: pytest.FixtureRequest) -> tuple[Page, Page]:
    """Pair of an English page and its Chinese version."""
    english, chinese = PAIRS[request.param]
    return read_page(english), read_page(chinese)


def test_the_headings_are_those_of_the_english_page(pair: tuple[Page, Page]):
    english, chinese = pair
    assert chinese.levels == english.levels


def test_the_commands_are_those_of_the_english_page(pair: tuple[Page, Page]):
    english, chinese = pair
    assert chinese.commands == english.commands
    assert english.named_commands - chinese.named_commands == set()


def test_the_code_is_that_of_the_english_page(pair: tuple[Page, Page]):
    english, chinese = pair
    kinds = [[block.kind for block in page.blocks] for page in pair]
    assert kinds[1] == kinds[0]
    assert chinese.code == english.code


def test_the_figures_are_those_of_the_english_page(pair: tuple[Page, Page]):
    english, chinese = pair
    lacking, more = english.figures - chinese.figures, chinese.figures - english.figures
    assert (lacking, more) == (Counter(), Counter())


def test_quoted_outputs_have_the_numbers_of_the_english_page(pair: tuple[Page, Page]):
    english, chinese = pair
    assert chinese.outputs == english.outputs


def test_it_leads_where_the_english_page_leads(pair: tuple[Page, Page]):
    english, chinese = pair
    targets = {*map(find_chinese, english.targets)} - {*READMES}
    assert targets - chinese.targets == set()


@pytest.mark.parametrize('page', ALL, ids=lambda path: path.name)
def test_a_link_to_an_english_page_says_so_and_is_the_last_resort(page: Path):
    for link, remark in LINK.findall(read_page(page).prose):
        target = find_target(page, link)
        is_english = target.is_relative_to(ENGLISH) and target.suffix == '.md'
        assert find_chinese(target) == target, f'there is a Chinese page: {link}'
        assert bool(remark) or not is_english, f'without （英文）: {link}'


@pytest.mark.parametrize('page', ALL, ids=lambda path: path.name)
def test_the_end_says_that_no_native_reader_has_seen_it(page: Path):
    *_, end = page.read_text(encoding='utf-8').strip().split('\n\n')
    assert '母语' in end
    assert 'issue' in end


def test_the_scalars_are_those_of_the_reference():
    english, chinese = (NAME.findall(page.read_text('utf-8')) for page in SCALARS)
    words = {'cores': '核', 'workers': '个'}
    assert chinese == [(name, words.get(unit, unit)) for name, unit in english]
    assert english


@pytest.mark.parametrize(
    ('readme', 'other'), [READMES, READMES[::-1]], ids=['English', 'Chinese']
)
def test_each_readme_leads_to_the_other_one_below_its_title(readme: Path, other: Path):
    title, languages, *_ = readme.read_text(encoding='utf-8').split('\n\n')
    assert title == '# mmgpu_hooks'
    assert f']({other.name})' in languages


def test_a_page_is_taken_apart(tmp_path: Path):
    """Tests that all that is compared of two pages is found in one."""
    path = tmp_path / 'page.md'
    path.write_text(
        '# 标题\n\n`mmgpu\nwhy A` 占 5 %，3.2 s 到 1,000 ms，60 us，4 KB，'
        '见[那页](b.md#2-s)（英文）。\n\n'
        '```console\n$ mmgpu run a.py \\\n    --x 9 %   # 注释\nmmgpu run: 5 s\n```\n\n'
        '```text\n9 times in 10: 4,100, 0.5s, run1\n```\n\n'
        '## 小节\n\n'
        '```python\n# 注释\na = 1  # 注释\n```\n',
        encoding='utf-8',
    )
    page = read_page(path)
    assert page.levels == [1, 2]
    assert page.commands == ['mmgpu run a.py --x 9 %']
    assert page.named_commands == {'mmgpu why A'}
    assert page.code == [Block('python', '\na = 1')]
    assert page.figures == Counter(['5 %', '3.2 s', '1,000 ms', '60 us', '4 KB'])
    assert page.outputs == [Counter(['9', '5']), Counter(['90', '4,100', '0.5'])]
    assert page.targets == {tmp_path / 'b.md'}
