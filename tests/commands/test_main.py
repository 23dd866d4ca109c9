from __future__ import annotations

import os
import signal
import sys
import threading
import time
import weakref

import pytest

from mmgpu_hooks.commands import explain
from mmgpu_hooks.commands import main as main_module
from mmgpu_hooks.commands.main import main


def test_a_plain_kill_ends_a_command_as_ctrl_c_does(monkeypatch):
    cleaned: list[str] = []

    def run(arguments) -> int:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        finally:
            cleaned.append('up')
        return 0

    monkeypatch.setattr(explain, 'run', run)
    before = signal.getsignal(signal.SIGTERM)
    assert main(['explain']) == 130
    assert cleaned == ['up']
    assert signal.getsignal(signal.SIGTERM) is before


def test_ctrl_c_while_a_command_is_imported_ends_it_without_a_word(monkeypatch, capsys):
    def build_parser(names):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(main_module, 'build_parser', build_parser)
    assert main(['explain']) == 130
    assert capsys.readouterr() == ('', '')


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_a_stop_that_came_where_nothing_can_be_raised_comes_again(
    monkeypatch, capsys, number
):
    class Tidied:
        pass

    def run(arguments) -> int:
        tidied = Tidied()
        # Python ignores what is raised in here, as in its own ends of imports
        ended = weakref.ref(tidied, lambda _: os.kill(os.getpid(), number))
        del tidied
        time.sleep(5)
        return 0 if ended() is None else 1

    monkeypatch.setattr(explain, 'run', run)
    before = sys.unraisablehook
    assert main(['explain']) == 130
    assert sys.unraisablehook is before
    assert capsys.readouterr().err == ''


def test_a_command_runs_in_any_thread(capsys):
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(main(['explain', 'MG101'])))
    thread.start()
    thread.join()
    assert codes == [0]
    assert 'MG101' in capsys.readouterr().out
