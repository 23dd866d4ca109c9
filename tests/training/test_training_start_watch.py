"""Tests that a training's start raises an alarm if it hangs, not if it is slow."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable

import pytest

from mmgpu_hooks.hooks.start import StartFile, watch_building
from mmgpu_hooks.measure.watchdog import WATCHDOG_THREAD
from mmgpu_hooks.schema.run import read_evidence
from training.toy import HOOK, build_runner, log_of, train

AFTER_S, PATIENCE_S = 0.1, 30.0
WATCHED = {**HOOK, 'stuck_after_s': AFTER_S, 'summary': False}
SAID = 'before training began'


def start(folder: Path, load: Callable[[], Any]) -> Any:
    """Trains a few iterations after calling a function in ``load_or_resume``."""
    runner = build_runner(folder, iterations=4, hook=WATCHED)
    runner.load_or_resume = load
    return train(runner)


def find_files(folder: Path) -> list[Path]:
    return list(folder.rglob('before_training*.jsonl'))


def test_where_it_stands_is_said_and_filed_until_it_trains(tmp_path):
    seen = list[Any]()

    def look() -> None:
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until and not seen:
            time.sleep(0.01)
            for path in find_files(tmp_path):
                seen.extend(read_evidence(path).stuck)

        ended.set()

    # to read is work, so another thread looks
    ended = threading.Event()
    looking = threading.Thread(target=look)

    def load() -> None:
        looking.start()
        ended.wait(PATIENCE_S)

    runner = start(tmp_path, load)
    looking.join()
    (stuck,) = seen
    assert (stuck.part, stuck.has_met) == ('start', None)
    assert stuck.waited_s >= 10 * AFTER_S
    assert any(call.endswith(' in load') for call in stuck.stack)
    log = log_of(runner)
    assert f'{SAID} (checkpoint)' in log and ' in load' in log
    # its evidence took the place
    assert not find_files(tmp_path)
    assert WATCHDOG_THREAD not in [thread.name for thread in threading.enumerate()]


def read_for_long(folder: Path) -> None:
    (folder / 'file').write_bytes(bytes(10_000))
    until = time.monotonic() + 25 * AFTER_S
    with (folder / 'file').open('rb', buffering=0) as file:
        while time.monotonic() < until:
            file.seek(0)
            file.read()
            time.sleep(0.001)


def compute_for_long(folder: Path) -> None:
    until = time.monotonic() + 25 * AFTER_S
    while time.monotonic() < until:
        sum(range(10_000))


@pytest.mark.parametrize('work', [read_for_long, compute_for_long])
def test_a_start_at_work_is_left_alone(tmp_path, work):
    runner = start(tmp_path, lambda: work(tmp_path))
    assert SAID not in log_of(runner)


def test_with_stuck_after_s_0_no_thread_watches_the_start(tmp_path):
    threads: list[str] = []
    runner = build_runner(tmp_path, iterations=4, hook={**WATCHED, 'stuck_after_s': 0})
    runner.load_or_resume = lambda: threads.extend(
        thread.name for thread in threading.enumerate()
    )
    train(runner)
    assert threads and WATCHDOG_THREAD not in threads


def test_a_start_that_fails_ends_what_watched_it(tmp_path):
    runner = build_runner(tmp_path, iterations=4, hook=WATCHED)
    runner._train_dataloader['batch_size'] = -1
    with pytest.raises(ValueError, match='batch_size'):
        runner.train()
    assert WATCHDOG_THREAD not in [thread.name for thread in threading.enumerate()]
    assert not find_files(tmp_path)


STAND = 'def broadcast(wait):\n    wait()\n'
SET_UP = 'def setup_env(stand, wait):\n    stand(wait)\n'


@pytest.mark.parametrize(
    ('peer', 'is_named'),
    [(None, True), ('import time; time.sleep(60)', True), ('while True: pass', False)],
    ids=['nobody', 'one that sleeps', 'one at work'],
)
def test_the_first_collective_of_all_names_who_waits(
    monkeypatch, capsys, peer, is_named
):
    known = {'WORLD_SIZE': '2', 'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': '29'}
    for name, value in {**known, 'RANK': '0'}.items():
        monkeypatch.setenv(name, value)
    found: dict[str, Any] = {}
    exec(compile(STAND, 'torch/distributed/distributed_c10d.py', 'exec'), found)
    exec(compile(SET_UP, 'mmengine/runner/runner.py', 'exec'), found)
    said = list[str]()

    def wait() -> None:
        until = time.monotonic() + (PATIENCE_S if is_named else 1.5)
        while time.monotonic() < until and 'Training is left' not in ''.join(said):
            time.sleep(0.05)
            said.append(capsys.readouterr().err)

    with contextlib.ExitStack() as stack:
        if peer is not None:
            words = [sys.executable, '-c', peer]
            process = subprocess.Popen(words, env={**os.environ, 'RANK': '1'})
            stack.enter_context(process)
            stack.callback(process.kill)
            time.sleep(1.0)  # to start is work, too
        watch = watch_building(object(), 0.3)
        stack.callback(watch.close)
        found['setup_env'](found['broadcast'], wait)
    text = ''.join(said)
    assert ('Cause: rank_never_came (likely)' in text) is is_named
    assert ('Rank 0 of 2 waits for the others here' in text) is is_named
    assert 'More: mmgpu why' not in text


def test_a_runner_without_a_folder_has_no_file():
    file = StartFile(object())
    assert file.path is None
    file.write()
    file.close()
