"""``mmgpu report``: a run as a page to show to others."""

from __future__ import annotations

from pathlib import Path

import click

from mmgpu_hooks.commands import options
from mmgpu_hooks.commands.read_runs import judge_runs
from mmgpu_hooks.config.files import verify_output, write_atomic
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.figures import format_bytes
from mmgpu_hooks.show.page import is_page, render_page


@options.command('report', '0 written')
@click.argument('run_folder', type=options.PATH)
@click.option(
    '-o',
    '--output',
    type=options.PATH,
    default='report.html',
    metavar='FILE',
    help='File to write; an older report is replaced.',
)
def report(run_folder: Path, output: Path) -> None:
    """Write a run as one HTML file that opens offline.

    RUN_FOLDER is the work_dir of a training; its newest run is read. The page has the
    verdict, the time ledger, the run over time, loader, memory, saves, ranks and host.
    """
    # before any long step, so that no other file is lost
    verify_output(output)
    if output.exists():
        with output.open('rb') as file:
            beginning = file.read(4096)
        if beginning and not is_page(beginning):
            raise UserError(
                f'expected a new file or an older report, found another file at '
                f'{output}; name another with --output.'
            )
    answer = judge_runs([run_folder]).answer
    page = render_page(answer, run_folder.absolute().name).encode()
    output.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(output, page)
    print(f'Written to {output} ({format_bytes(len(page))})')
