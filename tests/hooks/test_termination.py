from __future__ import annotations

import signal
import subprocess
import sys

from mmgpu_hooks.hooks.termination import TerminationWatch

DIES = """
import os, signal, sys
from mmgpu_hooks.hooks.termination import TerminationWatch
watch = TerminationWatch(lambda: print('ended', flush=True))
watch.start()
child = os.fork()
if child == 0:
    os.kill(os.getpid(), signal.SIGTERM)
    os._exit(7)
print('child', os.waitpid(child, 0)[1], flush=True)
os.kill(os.getpid(), signal.SIGTERM)
print('not reached')
"""


def test_the_process_ends_the_recording_and_dies_of_the_signal():
    done = subprocess.run([sys.executable, '-c', DIES], capture_output=True, text=True)
    assert done.returncode == -signal.SIGTERM
    assert done.stdout.split('\n') == [f'child {int(signal.SIGTERM)}', 'ended', '']


def test_the_default_effect_is_given_back():
    watch = TerminationWatch(lambda: None)
    watch.start()
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    watch.close()
    watch.close()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_handler_of_somebody_else_stays():
    def theirs(number: int, frame: object) -> None:
        pass

    before = signal.signal(signal.SIGTERM, theirs)
    try:
        watch = TerminationWatch(lambda: None)
        watch.start()
        watch.close()
        assert signal.getsignal(signal.SIGTERM) is theirs
    finally:
        signal.signal(signal.SIGTERM, before)
