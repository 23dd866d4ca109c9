"""``mmgpu report``: writes a run as an HTML page."""

from __future__ import annotations

from pathlib import Path

import click

from mmgpu_hooks.commands import options
from mmgpu_hooks.commands.pages import expect_page_place, write_page
from mmgpu_hooks.commands.read_runs import judge_runs
from mmgpu_hooks.commands.switching_on import with_lines
from mmgpu_hooks.schema.text import phrase
from mmgpu_hooks.show.page import render_page
from mmgpu_hooks.show.words import say


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
    expect_page_place(output)
    judged = judge_runs([run_folder])
    answer = with_lines(judged.answer, judged.files)
    size = write_page(output, render_page(answer, run_folder.absolute().name))
    written = phrase('Written to {path} ({size_bytes})', path=output, size_bytes=size)
    print(say(written))
