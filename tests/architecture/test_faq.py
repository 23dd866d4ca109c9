"""Tests that the FAQ names existing causes and commands, in English and Chinese.

The Chinese FAQ has the same messages, causes and commands.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from mmgpu_hooks.commands.main import COMMANDS
from mmgpu_hooks.judge.causes import CAUSES
from mmgpu_hooks.judge.console_log import read_log
from mmgpu_hooks.judge.rules import RULES
from mmgpu_hooks.judge.why import NamedLog, judge_end

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / 'docs' / 'en' / 'faq.md'
TEXT = PAGE.read_text()
CHINESE_PAGE = ROOT / 'docs' / 'zh_cn' / 'faq.md'
CHINESE_TEXT = CHINESE_PAGE.read_text(encoding='utf-8')

SEARCHED = (
    'DataLoader worker (pid 1234) is killed by signal: Killed',
    "Bus error. It is possible that dataloader's workers are out of shared memory",
    'received 0 items of ancdata',
    'RuntimeError: Pin memory thread exited unexpectedly',
    'CUDA out of memory',
    'Expected to have finished reduction in the prior iteration',
    'device-side assert triggered',
    'Address already in use',
    'loading annotations into memory...',
    'Advance dataloader 26667 steps',
)
"""Messages that users search for, which the FAQ must contain in one piece."""

UNANSWERED = 'No command answers this yet'
CHINESE_UNANSWERED = '目前还没有命令能'
CERTAINTIES = {'确定': 'sure', '很可能': 'likely'}
CORRECTIONS = '欢迎提 issue 指正'
"""Text in the last line of the Chinese FAQ, which asks readers for corrections."""

WITHOUT_COMMAND = (
    'Files are expensive',
    'Several cards are no faster',
    'It slows down with time',
)


class Entry(NamedTuple):
    """FAQ entry: a message or symptom, and its explanation."""

    title: str
    body: str
    is_message: bool

    @property
    def consoles(self) -> list[str]:
        """Console outputs that the entry quotes."""
        return re.findall(r'^```text\n(.*?)^```', self.body, re.MULTILINE | re.DOTALL)

    @property
    def fences(self) -> list[tuple[str, str]]:
        """Kind and text of each fenced block of the entry."""
        fence = re.compile(r'^```(\w+)\n(.*?)^```', re.MULTILINE | re.DOTALL)
        return fence.findall(self.body)


def list_entries(text: str) -> list[Entry]:
    """Returns a FAQ page's entries in order; those of its first part are messages."""
    entries = list[Entry]()
    for number, part in enumerate(re.split(r'^## ', text, flags=re.MULTILINE)[1:]):
        for entry in re.split(r'^### ', part, flags=re.MULTILINE)[1:]:
            title, _, body = entry.partition('\n')
            entries.append(Entry(title, body, is_message=number == 0))
    return entries


ENTRIES = list_entries(TEXT)
BY_TITLE = {entry.title: entry for entry in ENTRIES}
*_, _CLOSING = CHINESE_TEXT.rstrip().splitlines()
CHINESE_ENTRIES = list_entries(CHINESE_TEXT.rstrip().removesuffix(_CLOSING))
CHINESE_BY_TITLE = dict(zip(BY_TITLE, CHINESE_ENTRIES))
"""Chinese FAQ entries by the title of the English entry."""

MESSAGES = {
    f'{entry.title} ({number})' if number else entry.title: (entry, console)
    for entry in ENTRIES
    for number, console in enumerate(entry.consoles)
    if entry.is_message
}


@pytest.mark.parametrize('name', MESSAGES)
def test_a_message_gets_the_cause_that_its_entry_names(name):
    entry, console = MESSAGES[name]
    (cause, certainty), *others = re.findall(r'Cause: `(\w+)` \((\w+)\)', entry.body)
    assert others == []
    text = console.encode()
    found = judge_end([NamedLog('console', read_log(io.BytesIO(text), len(text)))])
    assert (found.cause, found.certainty) == (cause, certainty)


def test_every_message_of_the_group_has_a_console():
    bare = [entry.title for entry in ENTRIES if entry.is_message and not entry.consoles]
    assert bare == []
    assert len(MESSAGES) >= 9


@pytest.mark.parametrize('message', SEARCHED)
def test_a_message_stands_there_as_it_is_searched_for(message):
    assert message in TEXT
    assert message in CHINESE_TEXT


def test_titles_differ():
    assert len(BY_TITLE) == len(ENTRIES)


@pytest.mark.parametrize('title', BY_TITLE)
@pytest.mark.parametrize('entries', [BY_TITLE, CHINESE_BY_TITLE], ids=['en', 'zh_cn'])
def test_an_entry_ends_in_a_command_of_ours(title, entries):
    lines = entries[title].body.rstrip().splitlines()
    assert lines[-1] == '```'
    start = max(n for n, line in enumerate(lines) if line.startswith('```console'))
    # nothing but the command lies between
    assert all(line.startswith('$ ') for line in lines[start + 1 : -1])
    assert any(line.startswith('$ mmgpu ') for line in lines[start + 1 : -1])


def test_the_chinese_page_has_as_many_entries_and_asks_for_corrections():
    assert len(CHINESE_ENTRIES) == len(ENTRIES)
    assert CORRECTIONS in _CLOSING


@pytest.mark.parametrize('title', BY_TITLE)
def test_a_chinese_entry_says_the_same(title):
    entry, chinese = BY_TITLE[title], CHINESE_BY_TITLE[title]
    assert chinese.fences == entry.fences
    causes = re.findall(r'Cause: `(\w+)` \((\w+)\)', entry.body)
    said = re.findall(r'原因\W`(\w+)`\W(\w+)', chinese.body)
    assert [(cause, CERTAINTIES[certainty]) for cause, certainty in said] == causes
    rules = [sorted(re.findall(r'MG\d+', each.body)) for each in (entry, chinese)]
    assert rules[0] == rules[1]
    assert (CHINESE_UNANSWERED in chinese.body) == (UNANSWERED in entry.body)


def test_three_symptoms_say_that_no_command_answers_them():
    titles = [entry.title for entry in ENTRIES if UNANSWERED in entry.body]
    assert len(titles) == len(WITHOUT_COMMAND)
    for start in WITHOUT_COMMAND:
        (title,) = (title for title in titles if title.startswith(start))
        assert re.search('By hand:\n\n1\\. ', BY_TITLE[title].body)


def test_each_command_cause_and_rule_exists():
    fence = re.compile(r'^```(\w+)\n(.*?)^```', re.MULTILINE | re.DOTALL)
    code = [body for kind, body in fence.findall(TEXT) if kind == 'console']
    code += re.findall(r'`([^`]+)`', fence.sub('', TEXT))
    commands = {*re.findall(r'\bmmgpu ([a-z][a-z-]*)', '\n'.join(code))}
    assert {'why', 'recommend', 'doctor', 'profile'} <= commands
    assert commands - {*COMMANDS} == set()
    assert {*re.findall(r'Cause: `(\w+)`', TEXT)} <= {*CAUSES}
    assert {*re.findall(r'\bMG\d+', TEXT)} <= {*RULES}


@pytest.mark.parametrize('page', [PAGE, CHINESE_PAGE], ids=['en', 'zh_cn'])
def test_each_anchor_is_a_heading(page):
    broken = list[str]()
    text = page.read_text(encoding='utf-8')
    for target, anchor in re.findall(r'\]\(([\w./-]*)#([^)]+)\)', text):
        linked = page.parent / target if target else page
        headings = re.findall(r'^#+ (.*)$', linked.read_text('utf-8'), re.MULTILINE)
        if anchor not in map(_anchor, headings):
            broken.append(f'{target}#{anchor}')
    assert broken == []


def _anchor(heading: str) -> str:
    """Returns the anchor that GitHub generates for a heading."""
    return re.sub(r'[^\w\- ]', '', heading.lower()).replace(' ', '-')
