"""``mmgpu report``: one run or several as a page to show to others."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mmgpu_hooks.commands import exit_codes
from mmgpu_hooks.commands.judging import judge_run_folder
from mmgpu_hooks.commands.what_if import predict_workers
from mmgpu_hooks.schema.run_folder import EvidenceError
from mmgpu_hooks.show.figures import format_bytes
from mmgpu_hooks.show.run_sections import ReportedRun, label_runs

NAME = 'report'
HELP = 'write one run or several as an HTML page'
DESCRIPTION = """\
Write one run, or several side by side, as one HTML file that opens offline:
verdict, time ledger, the run over time, loader, memory, saves, ranks and host."""
EPILOG = """\
exit codes: 0 written, 2 input or output that cannot be used (one sentence on standard
error says why, and nothing is written)"""

_BEGINNING = 4096
"""Bytes of a file that tell whether it is a report."""


class OutputError(Exception):
    """The output cannot be written; the message is one sentence for the user."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument(
        'run_folders',
        type=Path,
        nargs='+',
        metavar='run_folder',
        help='work_dir of a training; its newest run is read',
    )
    parser.add_argument(
        '-o',
        '--output',
        type=Path,
        default=Path('report.html'),
        help='file to write (default: %(default)s); an older report is replaced',
    )
    parser.add_argument(
        '--plots',
        type=Path,
        metavar='DIR',
        help='write the charts there as well; needs matplotlib',
    )
    parser.add_argument(
        '--format',
        choices=('svg', 'png'),
        default='svg',
        help='of the charts (default: %(default)s)',
    )


def run(arguments: argparse.Namespace) -> int:
    """Judge the runs, render all, then write."""
    # late, because no other command draws
    from mmgpu_hooks.show.charts import NoMatplotlibError

    try:
        _check_output(arguments.output)
        runs = read_runs(arguments.run_folders)
        files = render_files(runs, arguments.output, arguments.plots, arguments.format)
        write_files(files)
    except (EvidenceError, OutputError, NoMatplotlibError) as error:
        print(f'mmgpu report: {error}', file=sys.stderr)
        return exit_codes.BAD_INPUT
    if arguments.plots is not None:
        print(f'{len(files) - 1} chart(s) written to {arguments.plots}')
    size = format_bytes(len(files[arguments.output]))
    print(f'Written to {arguments.output} ({size}, {len(runs)} run(s))')
    return exit_codes.OK


def read_runs(folders: Sequence[Path]) -> list[ReportedRun]:
    """Judge each run.

    Raises:
        EvidenceError: If one of them cannot be judged.
    """
    labels = label_runs([str(folder.absolute()) for folder in folders])
    runs = []
    for label, folder in zip(labels, folders):
        judged = judge_run_folder(folder)
        run = ReportedRun(label, judged.answer, judged.plain)
        if judged.run is not None:
            changes = judged.answer.recommendation.changes
            found, why = predict_workers(judged.run, changes)
            run = replace(run, predictions=found, why_no_predictions=why)
        runs.append(run)
    return runs


def render_files(
    runs: Sequence[ReportedRun], output: Path, plots: Path | None, ending: str
) -> dict[Path, bytes]:
    """The content of every file to write, the page last.

    Raises:
        NoMatplotlibError: If charts are asked for and cannot be drawn.
    """
    from mmgpu_hooks.show.charts import draw
    from mmgpu_hooks.show.page import list_charts, render_page

    files = {}
    if plots is not None:
        for name, chart in list_charts(runs):
            files[plots / f'{name}.{ending}'] = draw(chart, ending)
    files[output] = render_page(runs).encode()
    return files


def write_files(files: dict[Path, bytes]) -> None:
    """Write each file whole, the last one last; none where one is refused.

    Raises:
        OutputError: If one cannot be written.
    """
    from mmgpu_hooks.config.write import verify_output, write_atomic

    try:
        for path in files:
            verify_output(path)
        for path, content in files.items():
            if path.parent != Path() and not path.parent.exists():
                path.parent.mkdir(parents=True)
            write_atomic(path, content)
    except OSError as error:
        raise OutputError(
            f'expected to write {path}, found "{error.strerror}"; check the folder '
            'and its permissions, or name another with --output or --plots.'
        ) from error


def _check_output(output: Path) -> None:
    """Before any long step, and so that no other file is lost."""
    from mmgpu_hooks.config.write import verify_output

    try:
        if output.is_dir():
            raise OutputError(
                f'expected a file to write, found that {output} is a folder; name a '
                'file in it.'
            )
        verify_output(output)
        if not output.exists():
            return
        with output.open('rb') as file:
            beginning = file.read(_BEGINNING)
    except OSError as error:
        raise OutputError(
            f'expected to write {output}, found "{error.strerror}"; name another file '
            'with --output.'
        ) from error
    # late, because the page takes longer to import than everything else here
    from mmgpu_hooks.show.page import is_page

    if beginning and not is_page(beginning):
        raise OutputError(
            f'expected a new file or an older report, found another file at {output}; '
            'name another with --output.'
        )
