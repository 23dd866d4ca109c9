"""Command lines with wrong input of every kind, and the files that they name."""

from __future__ import annotations

import shutil
from pathlib import Path

from golden.facts import CASES, SHARED_CONFIG, lay_out

WRONG = tuple(
    line.strip()
    for line in """
    nothing
    recomend RUN
    recommend
    recommend RUN --nothing
    recommend RUN --config
    recommend RUN --format xml
    recommend RUN --cores 0
    recommend RUN --cores 10000
    recommend FOLDER/gone
    recommend FOLDER/empty
    recommend CONFIG
    recommend FOLDER/newer_schema/run
    recommend FOLDER/two_runs_in_one_file/run
    recommend FOLDER/no_run/run
    recommend RUN --config FOLDER/syntax.py
    recommend RUN --config FOLDER/gone.py
    recommend RUN --config FOLDER/no_base.py
    recommend RUN --config FOLDER/words.txt
    recommend RUN --output FOLDER/gone/x.py
    recommend RUN --in-place --output FOLDER/x.py
    why
    why FOLDER/gone
    why --log FOLDER/gone.txt
    why --log FOLDER
    report RUN --output CONFIG
    compare RUN
    compare RUN RUN --max-regression 5
    explain MG999
    set CONFIG
    set CONFIG train_dataloader.num_workers
    set CONFIG train_dataloader.num_workers=-3
    set CONFIG train_dataloader.workers=3
    set CONFIG train_dataloader.timeout=-1
    set CONFIG default_hooks.gpu.stuck_after_s=-1
    set CONFIG default_hooks.logger.priority=WRONG
    set CONFIG custom_hooks.0.interval=1
    set FOLDER/syntax.py train_dataloader.num_workers=2
    set FOLDER/no_key.py train_dataloader.num_workers=2
    enable FOLDER/syntax.py
    disable FOLDER/gone.py
    verify
    verify RUN RUN RUN
    verify CONFIG --max-minutes 0
    verify FOLDER/no_key.py
    sweep CONFIG --num-workers x
    sweep CONFIG --num-workers -1
    sweep CONFIG --time-limit 0
    save-bench CONFIG
    save-bench CONFIG --saves 0
    profile CONFIG --iterations 0
    profile FOLDER/no_key.py
    predict RUN --num-workers many
    predict FOLDER/iterations_start_over/run
    estimate-memory CONFIG --run RUN
    estimate-memory CONFIG --fit 24
    estimate-memory CONFIG --image-size axb
    estimate-memory FOLDER/no_key.py
    pick-gpu
    pick-gpu --min-free x
    run
    run FOLDER
    run FOLDER/gone.py
    run CONFIG
    run --interval 0 a.py
    run --interval x a.py
    run --stuck-after -1 a.py
    run --optimize foo a.py
    doctor FOLDER/syntax.py
    doctor FOLDER/gone.py
    runs FOLDER/gone
    runs FOLDER --since yesterday
    runs FOLDER --verdict nix
    runs FOLDER --jobs 2
    runs FOLDER --judge --slurm "'-p"
    demo x y
    """.strip().splitlines()
)
"""Command lines with wrong input; RUN, CONFIG and FOLDER stand for paths."""


def lay_out_wrong(folder: Path) -> None:
    """Writes the runs, bad evidence files and configs that wrong command lines name."""
    lay_out(CASES / 'rtmdet_before', folder)
    for case in (
        'newer_schema',
        'two_runs_in_one_file',
        'no_run',
        'iterations_start_over',
    ):
        lay_out(CASES / case, folder / case)
    shutil.copy(SHARED_CONFIG, folder / 'config.py')
    (folder / 'empty').mkdir()
    (folder / 'words.txt').write_text('words')
    (folder / 'syntax.py').write_text('a = (1,\n')
    (folder / 'no_key.py').write_text('a = 1\n')
    (folder / 'no_base.py').write_text("_base_ = ['./gone.py']\n")


def split_words(line: str, folder: Path) -> list[str]:
    """Splits a command line into words; RUN, CONFIG and FOLDER become paths."""
    places = {'RUN': folder / 'run', 'CONFIG': folder / 'config.py', 'FOLDER': folder}
    words = []
    for word in line.split():
        head, slash, rest = word.partition('/')
        words.append(f'{places.get(head, head)}{slash}{rest}'.strip('"'))
    return words
