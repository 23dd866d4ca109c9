"""The page of messages and symptoms says what ``mmgpu why`` finds, and ends in commands
that there are.
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
"""Messages as users search for them: they stand on the page in one piece."""

UNANSWERED = 'No command answers this yet'
WITHOUT_COMMAND = (
    'Files are expensive',
    'Several cards are no faster',
    'It slows down with time',
)


class Entry(NamedTuple):
    """A message or a symptom, and what the page says to it."""

    title: str
    body: str
    is_message: bool

    @property
    def consoles(self) -> list[str]:
        """What the console shows, each by itself."""
        return re.findall(r'^```text\n(.*?)^```', self.body, re.MULTILINE | re.DOTALL)


def list_entries() -> list[Entry]:
    """All entries, in the order of the page."""
    entries = list[Entry]()
    for part in re.split(r'^## ', TEXT, flags=re.MULTILINE)[1:]:
        for entry in re.split(r'^### ', part, flags=re.MULTILINE)[1:]:
            title, _, body = entry.partition('\n')
            entries.append(Entry(title, body, part.startswith('Messages')))
    return entries


ENTRIES = list_entries()
BY_TITLE = {entry.title: entry for entry in ENTRIES}
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


def test_titles_differ():
    assert len(BY_TITLE) == len(ENTRIES)


@pytest.mark.parametrize('title', BY_TITLE)
def test_an_entry_ends_in_a_command_of_ours(title):
    lines = BY_TITLE[title].body.rstrip().splitlines()
    assert lines[-1] == '```'
    start = max(n for n, line in enumerate(lines) if line.startswith('```console'))
    # nothing but the command lies between
    assert all(line.startswith('$ ') for line in lines[start + 1 : -1])
    assert any(line.startswith('$ mmgpu ') for line in lines[start + 1 : -1])


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


def test_each_anchor_is_a_heading():
    broken = list[str]()
    for target, anchor in re.findall(r'\]\(([\w.-]*)#([^)]+)\)', TEXT):
        page = PAGE.with_name(target) if target else PAGE
        headings = re.findall(r'^#+ (.*)$', page.read_text(), re.MULTILINE)
        if anchor not in map(_anchor, headings):
            broken.append(f'{target}#{anchor}')
    assert broken == []


def _anchor(heading: str) -> str:
    """The anchor that GitHub makes of a heading."""
    return re.sub(r'[^\w\- ]', '', heading.lower()).replace(' ', '-')
