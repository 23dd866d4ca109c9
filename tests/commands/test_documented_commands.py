"""Tests every command of README and docs by running it as written.

Of what trains for minutes (sweep, save-bench, verify, profile, demo) the arguments are
read. Of ``make``, each target that is named is there.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
from pathlib import Path

import click
import pytest

from fakes.forked import run_forked
from fakes.nvml import FakeGpu
from fakes.prepared import make_starved, prepare_folder
from fakes.runs import GIB, write_run
from mmgpu_hooks.commands.main import COMMANDS as NAMES
from mmgpu_hooks.commands.main import mmgpu

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / 'CONTRIBUTING.md',
    *sorted(ROOT.glob('README*.md')),
    *sorted(ROOT.glob('docs/*/**/*.md')),
]
"""Markdown pages whose commands are run, in every language."""

PLACEHOLDERS = {
    'work_dirs/CONFIG': 'work_dirs/mine',
    'CONFIG': 'configs/mine.py',
    'CODE': 'MG101',
    'A': 'work_dirs/run1',
    'B': 'work_dirs/run2',
    'DIR/sweep/trials/*': 'work_dirs/batch2 work_dirs/batch4',
    'DIR/sweep/trials/2-workers-batch-4': 'work_dirs/trial',
}
"""Replacements for placeholders in documented commands."""

FENCE = re.compile(r'^ *```(\w*)\n(.*?)^ *```', re.MULTILINE | re.DOTALL)
COMMAND = re.compile(
    r'(^\$ |^|: |\$\()((?:mmgpu|python tools/(?!train)\w+\.py)(?: [^#`)\n]*|$))',
    re.MULTILINE,
)


def list_commands(page: Path) -> list[tuple[str, bool]]:
    """Returns a page's ``mmgpu`` commands, and if each is a line to type.

    What stands in a sentence or a comment may be a command without its arguments.
    """
    text = page.read_text()
    blocks = [body for kind, body in FENCE.findall(text) if kind != 'text']
    inline = re.findall(r'`([^`]+)`', FENCE.sub('', text))
    found = [
        (command, prefix != ': ')
        for block in blocks
        for prefix, command in COMMAND.findall(block.replace('\\\n', ' '))
    ]
    for code in inline:
        found += [
            (command, False) for _, command in COMMAND.findall(' '.join(code.split()))
        ]
    return [
        (' '.join(command.replace('...', '').split()), typed)
        for command, typed in found
    ]


def read_words(command: str) -> tuple[Path | None, list[str], list[str]]:
    """Splits a command into its script (if any), arguments, and ``mmgpu`` arguments."""
    words = list[str]()
    for word in shlex.split(command):
        # a placeholder may stand for several; an argument in quotes is one
        words += PLACEHOLDERS[word].split() if word in PLACEHOLDERS else [word]
    if words[0] == 'mmgpu':
        return None, words[1:], words[1:]
    script = ROOT / words[1]
    return script, words[2:], [script.stem.replace('_', '-'), *words[2:]]


def find_command(name: str) -> click.Command:
    """Returns the click command of a name; one without options if there is none."""
    return mmgpu.get_command(click.Context(mmgpu), name) or click.Command(name)


def parses(words: list[str]) -> bool:
    """True if ``mmgpu`` accepts the arguments."""
    try:
        find_command(words[0]).make_context(words[0], words[1:])
    except click.exceptions.Exit:  # of --help
        return True
    except click.UsageError:
        return False
    return True


FOUND = {entry: page.name for page in PAGES for entry in list_commands(page)}
COMMANDS = sorted(
    {
        command
        for command, is_typed in FOUND
        if is_typed or (len(words := read_words(command)[2]) > 1 and parses(words))
    }
)


@pytest.fixture
def folder(tmp_path, fake_nvml, monkeypatch):
    """Folder with all runs, configs and programs that documented commands name."""
    config = prepare_folder(tmp_path)
    with config.open('a') as file:
        file.write("val_evaluator = dict(type='CocoMetric', ann_file='a.json')\n")
    write_run(tmp_path / 'work_dirs' / 'trial', make_starved())
    (tmp_path / 'bin').mkdir()
    for name in ('python', 'torchrun'):
        stub = tmp_path / 'bin' / name
        stub.write_text('#!/bin/sh\necho "$CUDA_VISIBLE_DEVICES"\n')
        stub.chmod(0o755)
    (tmp_path / 'tools').mkdir()
    (tmp_path / 'tools' / 'train.py').write_text('print("trains")\n')
    (tmp_path / 'tools' / 'dist_train.sh').write_text('echo trains\n')
    cards = (FakeGpu(uuid=f'GPU-{n}', memory=(80 * GIB, GIB), util=(0,)) for n in '01')
    fake_nvml.set(*cards)
    monkeypatch.setenv('PATH', f'{tmp_path / "bin"}:{os.environ["PATH"]}')
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize('command', COMMANDS, ids=str)
def test_a_documented_command_runs(command, folder):
    script, words, of_mmgpu = read_words(command)
    trains = of_mmgpu[0] in ('sweep', 'save-bench', 'verify', 'profile', 'demo')
    # a job, a cluster, 32 processes
    if trains or '--judge' in of_mmgpu:
        assert parses(of_mmgpu)
        return
    code, out, err = run_forked(words, script=script)
    # what is wrong with the machine that runs the tests is no fault of the command
    answers = (0, 1) if of_mmgpu[0] == 'doctor' else (0,)
    assert (code in answers, 'Traceback' in err) == (True, False), err
    assert out


def test_what_is_named_in_a_sentence_is_there():
    for command, _ in FOUND:
        name, *words = read_words(command.partition(' -- ')[0])[2] or ['--help']
        assert name in (*NAMES, '--help'), command
        if name == 'run':  # what follows the program is the program's
            words = list(itertools.takewhile(lambda word: word[:1] == '-', words))
        typed = (word.partition('=')[0] for word in words)
        options = {word for word in typed if re.match('--[a-z]', word)}
        known = {
            word for parameter in find_command(name).params for word in parameter.opts
        }
        assert options <= {*known, '--help'}, command


def test_every_target_of_make_is_there():
    makefile = (ROOT / 'Makefile').read_text()
    text = '\n'.join(page.read_text() for page in PAGES)
    targets = {*re.findall(r'(?:`|^\$ )make ([a-z-]+)', text, re.MULTILINE)}
    assert {'demo', 'test', 'lint'} <= targets
    assert [t for t in targets if f'\n{t}:' not in makefile] == []


def test_the_commands_were_found():
    """Tests that documented commands are found, so that the other tests run."""
    assert len(COMMANDS) >= 25
    assert 'mmgpu set CONFIG train_dataloader.num_workers=8' in COMMANDS
    assert 'python tools/recommend.py work_dirs/run1' in COMMANDS
    assert 'mmgpu pick-gpu --min-free 20GiB -- python tools/train.py CONFIG' in COMMANDS
