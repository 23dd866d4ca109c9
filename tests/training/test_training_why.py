"""Real trainings with a planted end, judged by ``mmgpu why``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mmgpu_hooks.commands.main import main
from training.ends import AT

TESTS = Path(__file__).parents[1]


def start(kind: str, folder: Path) -> subprocess.Popen[bytes]:
    paths = [str(TESTS.parent), str(TESTS), os.environ.get('PYTHONPATH', '')]
    with open(folder / 'console.txt', 'wb') as console:
        return subprocess.Popen(
            [sys.executable, '-m', 'training.ends', kind, str(folder)],
            stdout=console,
            stderr=subprocess.STDOUT,
            env={**os.environ, 'PYTHONPATH': os.pathsep.join(paths)},
        )


@pytest.fixture
def ask(capsys):
    """Runs the command and returns its JSON answer."""

    def run(*words: Any) -> dict[str, Any]:
        assert main(['why', *map(str, words), '--format', 'json']) == 0
        return json.loads(capsys.readouterr().out)

    return run


@pytest.mark.parametrize(
    ('kind', 'cause', 'alone'),
    [
        ('raise', 'sample_raised', 'sample_raised'),
        ('raise_without_workers', 'sample_raised', 'sample_raised'),
        # the kernel counted no kill for memory, which the console cannot know
        ('kill_worker', 'worker_killed', 'oom_host'),
        ('crash_worker', 'worker_killed', 'worker_killed'),
    ],
)
def test_an_end_that_python_sees(ask, tmp_path, kind, cause, alone):
    assert start(kind, tmp_path).wait(120)
    console = tmp_path / 'console.txt'
    answers = {
        'both': ask(tmp_path, '--log', console),
        'folder': ask(tmp_path),
        'console': ask('--log', console),
    }
    assert {answer['state'] for answer in answers.values()} == {'ended'}
    assert answers['both']['cause'] == answers['folder']['cause'] == cause
    assert answers['console']['cause'] == alone
    if cause == 'sample_raised':
        assert str(AT) in answers['folder']['sample']
        assert f'{AT:06d}.jpg' in answers['console']['sample']
        assert 'ends.py' in str(answers['folder']['proof'])


def test_a_run_that_is_killed(ask, tmp_path):
    child = start('wait', tmp_path)
    found: list[Path] = []
    until = time.monotonic() + 60
    while not found and time.monotonic() < until:
        time.sleep(0.2)
        found = [p for p in tmp_path.rglob('gpu_efficiency.jsonl') if p.stat().st_size]
    try:
        time.sleep(1)
        running = ask(tmp_path)
    finally:
        child.kill()
        child.wait()
    assert (running['state'], running['cause']) == ('running', None)
    for words in ([tmp_path], [tmp_path, '--log', tmp_path / 'console.txt']):
        answer = ask(*words)
        assert (answer['state'], answer['cause']) == ('ended', 'interrupted')
        assert answer['certainty'] == 'likely'
