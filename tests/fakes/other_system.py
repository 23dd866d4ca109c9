"""Program that trains, judges and rewrites as on a system other than Linux.

    python -m fakes.other_system windows FOLDER

Modules, functions and constants that the other system has not are taken away,
``/proc`` and its like are hidden, and then the package is imported and used. That is
not the other system: what it does in its own way, such as paths and open files, is not
played. psutil and what was imported before see Linux as it is.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HIDDEN = ('/proc', '/sys', '/dev/shm', '/dev/kmsg')
"""Paths that exist only on Linux."""
OF_PSUTIL = ('/proc', '/sys')
"""Linux folders that stay visible to psutil, as it needs no such files elsewhere."""

IMPORTED_BEFORE = (
    'click',
    'jinja2',
    'matplotlib.backends.backend_agg',
    'matplotlib.pyplot',
    'mmengine.runner',
    'mmengine.visualization',
    'msgspec',
    'numpy',
    'psutil',
    'pynvml',
    'rich.console',
    'scipy.stats',
    'tempfile',
    'torch.utils.cpp_extension',
    'torch.utils.data',
    'yapf.yapflib.yapf_api',
)
"""Packages that detect the system at import, imported before Linux is hidden."""

MODULES = {
    'windows': ('fcntl', 'grp', 'pty', 'pwd', 'resource', 'syslog', 'termios', 'tty'),
    'macos': (),
}

_LINUX_ALONE = (
    *('memfd_create', 'pidfd_open', 'posix_fadvise', 'eventfd', 'splice'),
    *('sched_getaffinity', 'sched_setaffinity', 'sched_getscheduler'),
    *('SIGRTMIN', 'SIGRTMAX', 'sigtimedwait', 'sigwaitinfo'),
    'CLOCK_BOOTTIME',
)
ATTRIBUTES = {
    'windows': (
        *_LINUX_ALONE,
        *('fork', 'forkpty', 'register_at_fork', 'wait', 'wait3', 'wait4', 'waitid'),
        *('killpg', 'getpgid', 'getpgrp', 'setsid', 'getsid', 'nice'),
        *('getpriority', 'setpriority', 'getuid', 'geteuid', 'getgid', 'getegid'),
        *('pread', 'preadv', 'pwrite', 'pwritev', 'fstatvfs', 'mkfifo'),
        *('chown', 'fchown', 'lchown', 'fchmod', 'fchdir', 'uname', 'sysconf'),
        *('getloadavg', 'posix_spawn', 'posix_spawnp', 'openpty', 'ttyname'),
        *('O_CLOEXEC', 'O_DIRECTORY', 'O_NOFOLLOW', 'O_NONBLOCK', 'O_SYNC'),
        *('SIGALRM', 'SIGCHLD', 'SIGCONT', 'SIGHUP', 'SIGKILL', 'SIGPIPE', 'SIGQUIT'),
        *('SIGSTOP', 'SIGUSR1', 'SIGUSR2', 'SIGXFSZ', 'alarm', 'setitimer'),
        *('pthread_kill', 'pthread_sigmask', 'siginterrupt', 'sigwait'),
        *('clock_gettime', 'CLOCK_MONOTONIC', 'CLOCK_REALTIME'),
    ),
    'macos': _LINUX_ALONE,
}
"""Names in ``os``, ``signal`` and ``time`` that another system lacks."""

PLATFORMS = {'windows': 'win32', 'macos': 'darwin'}
NAMES = {'windows': 'Windows', 'macos': 'Darwin'}
OF_PROCESSES = {
    'windows': ('num_fds', 'uids', 'gids', 'terminal', 'rlimit'),
    'macos': ('cpu_affinity', 'io_counters', 'ionice', 'rlimit'),
}
"""Methods of psutil's ``Process`` that another system lacks."""


def is_hidden(path: object) -> bool:
    """True if a path is hidden from all code except psutil."""
    if isinstance(path, os.PathLike):
        path = os.fspath(path)
    name = os.fsdecode(path) if isinstance(path, (str, bytes)) else ''
    if not _is_below(name, HIDDEN):
        return False
    if not _is_below(name, OF_PSUTIL):
        return True
    frame = sys._getframe(2)
    for _ in range(4):
        if frame.f_globals.get('__name__', '').startswith('psutil'):
            return False
        if frame.f_back is None:
            break
        frame = frame.f_back
    return True


def _is_below(name: str, roots: tuple[str, ...]) -> bool:
    return any(name == root or name.startswith(f'{root}/') for root in roots)


def hide(system: str) -> None:
    """Removes from this process what another system lacks, irreversibly."""
    for name in IMPORTED_BEFORE:
        importlib.import_module(name)
    # MMEngine imports it where it is installed
    with contextlib.suppress(ImportError):
        importlib.import_module('mmcv.ops')
    import psutil

    def refuse_hidden(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ('open', 'os.listdir', 'os.scandir') and is_hidden(arguments[0]):
            raise FileNotFoundError(2, 'hidden', str(arguments[0]))

    def refusing(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *args: Any, **kwargs: Any) -> Any:
            if is_hidden(path):
                raise FileNotFoundError(2, 'hidden', str(path))
            return original(path, *args, **kwargs)

        return call

    # functions that raise no audit event
    for name in ('stat', 'lstat', 'readlink', 'statvfs'):
        setattr(os, name, refusing(getattr(os, name)))
    sys.addaudithook(refuse_hidden)
    for module in MODULES[system]:
        sys.modules[module] = None
    for owner in (os, signal, time):
        for name in ATTRIBUTES[system]:
            if hasattr(owner, name):
                delattr(owner, name)
    for name in OF_PROCESSES[system]:
        if hasattr(psutil.Process, name):
            delattr(psutil.Process, name)
    sys.platform = PLATFORMS[system]
    # MMEngine asks it
    platform.system = lambda: NAMES[system]


def ask(*words: str) -> dict[str, Any]:
    """Runs a command in this process; returns its exit code and output."""
    from mmgpu_hooks.commands.main import main

    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        code = main([*words])
    return {'code': code, 'out': out.getvalue(), 'errors': errors.getvalue()}


def train(folder: Path, num_workers: int) -> dict[str, Any]:
    """Trains without and with the hook; returns the losses of both and the log."""
    from training.toy import HOOK, LossTape, build_runner, log_of, losses_of
    from training.toy import train as train_toy

    losses = []
    for hook in (None, HOOK):
        runner = build_runner(
            folder / ('plain' if hook is None else 'hooked'),
            iterations=24,
            epochs=2,
            hook=hook,
            num_workers=num_workers,
            evaluation_s=0.0,
            checkpoint={'interval': 1},
            item_s=0.002,
            custom_hooks=[LossTape()],
        )
        train_toy(runner)
        losses.append(losses_of(runner))
    return {'losses': losses, 'log': log_of(runner)}


def lay_out(folder: Path) -> Path:
    """Copies a recorded run with its config; returns the run's folder."""
    case = Path(__file__).parents[1] / 'golden' / 'no_workers'
    for name in ('config.py', 'run/gpu_efficiency.jsonl'):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text((case / name).read_text().replace('@CASE@', str(folder)))
    return folder / 'run'


def main(system: str, folder: Path) -> None:
    """Trains and runs commands as on another system; prints the results as JSON."""
    hide(system)
    assert not [name for name in sys.modules if name.startswith('mmgpu_hooks')]
    # Windows starts workers by spawning, which the toys are not made for
    found: dict[str, Any] = {'training': train(folder, int(system != 'windows'))}
    run = lay_out(folder / 'golden')
    found['recommend'] = ask('recommend', str(run), '--format', 'json')
    page = str(folder / 'page.html')
    found['report'] = ask('report', str(folder / 'hooked'), '--output', page)
    config = folder / 'mine.py'
    config.write_text('train_dataloader = dict(num_workers=2, batch_size=2)\n')
    words = ('set', str(config), 'train_dataloader.num_workers=3', '--in-place')
    found['set'] = ask(*words)
    found['config'] = config.read_text()
    commands: list[tuple[str, ...]] = [
        ('predict', str(run), '--format', 'json'),
        ('compare', str(run), str(run), '--format', 'json'),
        ('explain', 'MG204'),
        ('enable', str(config)),
        ('disable', str(config)),
    ]
    for name, *more in commands:
        found[name] = {**ask(name, *more), 'config': config.read_text()}
    print(json.dumps(found))


if __name__ == '__main__':
    main(sys.argv[1], Path(sys.argv[2]))
