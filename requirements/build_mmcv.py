"""Builds MMCV's wheel with its operators for the CPU, and shows the progress.

    python build_mmcv.py mmcv==VERSION FOLDER [pip options]

Nine tenths of a compiler's time with mmcv are torch's headers, which each of the 77
source files reads anew. So the files are joined into a few that include them (a "unity
build"): the same operators in a seventh of the time.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from pathlib import Path

SOURCES = ('mmcv/ops/csrc/pytorch', 'mmcv/ops/csrc/pytorch/cpu')
ALONE = {
    # they define the same names or macros as others do
    'psamask.cpp',
    'roi_align.cpp',
    'roi_align_rotated.cpp',
    'rotated_feature_align.cpp',
}
FEWEST_JOINED = 4
SECONDS_BETWEEN_LINES = 30.0
NINJA_LINE = re.compile(r'\s*\[(\d+)/(\d+)\]')
"""Regular expression of the progress mark ``[3/120]`` in ninja's output lines."""
ERROR = re.compile(r'\b(error|fatal|killed)\b', re.IGNORECASE)
"""Regular expression of output lines that are shown when the build fails."""
COMPILER_ERROR = re.compile(r':\d+:\d+: (fatal )?error: ')
"""Regular expression of a compiler's message about an error at a line and column."""


def main(requirement: str, folder: Path, pip_options: list[str]) -> int:
    """Builds MMCV's wheel into a folder; returns the exit code.

    Args:
        requirement: Such as ``mmcv==2.1.0``.
        folder: Gets the wheel, whole or not at all, and after a failure the log.
        pip_options: For every command of pip, such as an index.

    Returns:
        The exit code of the command that failed, or 0.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / 'build.log'
    # an earlier build that failed has left its own
    log.unlink(missing_ok=True)
    # without what pip keeps of mmcv itself: it may be of another torch, and what is
    # kept of ours, without CUDA, would be taken by the user's other projects
    options = ['--no-deps', '--no-build-isolation', '--no-cache-dir', *pip_options]
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        source = ['--no-binary', 'mmcv', '--dest', scratch, requirement]
        code = run(['download', *options, *source], log, 'Fetching')
        if code:
            return code
        tree = unpack(next(Path(scratch).glob('*.tar.gz')))
        join_sources(tree)
        wheel = ['--verbose', '--wheel-dir', scratch, str(tree)]
        code = run(['wheel', *options, *wheel], log, 'Compiling')
        if code:
            return code
        built = next(Path(scratch).glob('*.whl'))
        built.replace(folder / built.name)
    log.unlink()
    return 0


def unpack(archive: Path) -> Path:
    """Unpacks a source archive next to itself; returns the unpacked folder."""
    with tarfile.open(archive) as file:
        # a filter is what newer Pythons want to be named, and older lack
        safely = {'filter': 'data'} if hasattr(tarfile, 'data_filter') else {}
        file.extractall(archive.parent, **safely)
    return archive.parent / archive.name[: -len('.tar.gz')]


def join_sources(tree: Path) -> None:
    """Replaces MMCV's C++ sources by a few files that include them, for a faster build.

    Where mmcv's files lie elsewhere than expected nothing is joined.
    """
    count = max(FEWEST_JOINED, len(os.sched_getaffinity(0)))
    files = sorted(
        path
        for folder in SOURCES
        for path in (tree / folder).glob('*.cpp')
        if not (path.name in ALONE and path.parent.name == 'cpu')
    )
    for number in range(min(count, len(files))):
        # of neighbours by name, some are large and some small
        part = files[number::count]
        hidden = [path.rename(path.with_suffix('.inc')) for path in part]
        text = ''.join(f'#include "{path}"\n' for path in hidden)
        (tree / SOURCES[0] / f'joined_{number}.cpp').write_text(text)


def run(arguments: list[str], log: Path, verb: str) -> int:
    """Runs pip, shows the progress of ninja, and writes all output to a log."""
    command = [sys.executable, '-m', 'pip', *arguments]
    with log.open('a') as kept, Progress(verb) as progress:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert process.stdout is not None
        for line in process.stdout:
            kept.write(line)
            found = NINJA_LINE.match(line)
            if found:
                progress.done, progress.total = map(int, found.groups())
        code = process.wait()
    if code:
        errors = [line for line in log.read_text().splitlines() if ERROR.search(line)]
        # the reason is the compiler's first error; pip's words about it are the last
        reasons = [line for line in errors if COMPILER_ERROR.search(line)][:3]
        shown = [*reasons, *errors[len(reasons) - 10 :]]
        print(*dict.fromkeys(shown), f'(all of it: {log})', sep='\n', file=sys.stderr)
    return code


class Progress:
    """Progress line on a terminal; elsewhere, a new line is printed every 30 s.

    Args:
        verb: What is being done, such as ``Compiling``.
    """

    def __init__(self, verb: str) -> None:
        self.done = self.total = 0
        self._verb = verb
        self._start = time.monotonic()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)
        self._on_terminal = sys.stderr.isatty()

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        if self._on_terminal:
            # the line is taken away
            sys.stderr.write('\r\x1b[K')
            sys.stderr.flush()

    def _show(self) -> None:
        wait_s = 1.0 if self._on_terminal else SECONDS_BETWEEN_LINES
        while not self._is_over.wait(wait_s):
            text = self.describe(time.monotonic() - self._start)
            if self._on_terminal:
                columns = shutil.get_terminal_size().columns
                text = f'\r\x1b[K{text[: columns - 1]}'
            else:
                text += '\n'
            sys.stderr.write(text)
            sys.stderr.flush()

    def describe(self, elapsed_s: float) -> str:
        """Returns the progress line: files compiled, and time taken."""
        minutes, seconds = divmod(round(elapsed_s), 60)
        text = f'  {self._verb} mmcv'
        if self.total:
            filled = 20 * self.done // self.total
            bar = '#' * filled + '.' * (20 - filled)
            text += f' [{bar}] {self.done} of {self.total} files'
        return f'{text}, {minutes}:{seconds:02} min'


if __name__ == '__main__':
    try:
        sys.exit(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))
    except KeyboardInterrupt:
        sys.exit(130)
