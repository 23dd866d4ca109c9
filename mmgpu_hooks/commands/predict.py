"""``mmgpu predict``: what other settings of the loader would give."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mmgpu_hooks.commands import exit_codes
from mmgpu_hooks.commands.pooling import pool_read_runs, read_each
from mmgpu_hooks.commands.terminal import terminal_layout
from mmgpu_hooks.judge.memory import fold_card_room
from mmgpu_hooks.judge.ranks import fold_ranks
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.run_pool import RunPool, pool_runs
from mmgpu_hooks.model.batches import MOST_BATCH
from mmgpu_hooks.model.prediction import (
    MOST_PREFETCH,
    MOST_WORKERS,
    predict_setting,
)
from mmgpu_hooks.model.workload import Workload, at_batch_size
from mmgpu_hooks.schema import NoPrediction
from mmgpu_hooks.schema.reader import read_other_ranks
from mmgpu_hooks.schema.run_folder import EvidenceError, RunFiles, read_run_folder
from mmgpu_hooks.show.predictions import (
    Forecast,
    MemoryReport,
    render_forecast,
    render_forecast_json,
)

NAME = 'predict'
HELP = 'say what other settings of the loader would give'
DESCRIPTION = """\
Read the evidence that GPUEfficiencyHook left in a run's folder, and say what an
iteration would take with other settings of the train loader, and what would keep it
from being faster. Nothing is trained and nothing is written."""
EPILOG = """\
exit codes: 0 predicted, 2 input that cannot be used or tells too little"""

USUAL_WORKERS = (0, 1, 2, 4, 8)
USUAL_PREFETCH = (2,)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument(
        'run_folders',
        type=Path,
        nargs='+',
        metavar='run_folder',
        help='work_dir of a training, its newest run is read; several runs with other '
        'batch sizes say how the step and the memory grow',
    )
    parser.add_argument(
        '--num-workers',
        type=_whole(0, MOST_WORKERS),
        nargs='+',
        default=USUAL_WORKERS,
        metavar='N',
        help='numbers of workers to predict (default: 0 1 2 4 8)',
    )
    parser.add_argument(
        '--prefetch-factor',
        type=_whole(1, MOST_PREFETCH),
        nargs='+',
        default=USUAL_PREFETCH,
        metavar='N',
        help='batches in flight per worker to predict (default: 2)',
    )
    parser.add_argument(
        '--batch-size',
        type=_whole(1, MOST_BATCH),
        nargs='+',
        metavar='N',
        help="images per batch to predict (default: the run's); another one needs runs "
        'with several',
    )
    parser.add_argument(
        '--format', choices=('text', 'json'), default='text', help='default: text'
    )


def _whole(least: int, most: int) -> type[int]:
    """A whole number in a range, as the type of an argument."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(
                f'expected a whole number from {least} to {most}, found {text!r}'
            )
        return number

    return parse  # type: ignore[return-value]


def run(arguments: argparse.Namespace) -> int:
    """Read, predict, print."""
    try:
        forecast = predict_run(arguments)
    except EvidenceError as error:
        print(f'mmgpu predict: {error}', file=sys.stderr)
        return exit_codes.BAD_INPUT
    if forecast.reason is not None:
        print(f'mmgpu predict: {forecast.reason}', file=sys.stderr)
    if arguments.format == 'json':
        print(render_forecast_json(forecast))
    elif forecast.workload is not None:
        print(render_forecast(forecast, **terminal_layout(sys.stdout)))
    return exit_codes.OK if forecast.reason is None else exit_codes.BAD_INPUT


@dataclass(frozen=True)
class _ReadRun:
    files: RunFiles
    run: Run


def predict_run(arguments: argparse.Namespace) -> Forecast:
    """Read and predict, without a word.

    Raises:
        EvidenceError: If there is nothing that can be read.
    """
    folders: Sequence[Path] = arguments.run_folders
    notes: list[str] = []
    if len(folders) == 1:
        read = _read(_find_evidence(folders[0]))
        pool = pool_runs([read.run])
    else:
        runs, notes = read_each(folders, _read_ranks)
        read, pool = pool_read_runs(runs)
    run = read.run
    forecast = Forecast(
        run_path=run.path,
        status=run.status,
        workload=pool.workload,
        notes=(*run.notes, *_passed_over(read), *notes, *pool.notes),
        fitted=pool.fitted if len(folders) > 1 else (),
    )
    if pool.workload is None:
        return replace(forecast, reason=read.run.why_no_workload)
    return _predict(forecast, pool.workload, pool, notes, arguments)


def _find_evidence(folder: Path) -> RunFiles:
    files = read_run_folder(folder)
    if files.evidence is None:
        raise EvidenceError(
            f'{files.plain}: expected evidence of GPUEfficiencyHook, found only the '
            'log of MMEngine, which does not tell what loading costs; train with the '
            'hook in the config.'
        )
    return files


def _read(files: RunFiles) -> _ReadRun:
    assert files.evidence is not None
    return _ReadRun(files, Run.read(files.evidence))


def _read_ranks(files: RunFiles) -> _ReadRun:
    """With the peaks of all ranks: any of them can run out of memory."""
    read = _read(files)
    evidence, _ = read_other_ranks(files.other_ranks)
    others = [Run(one) for one in evidence]
    ranks = fold_ranks(read.run, others)
    joined = {row.rank for row in ranks.rows} if ranks is not None else set()
    read.run.other_ranks = [one for one in others if one.run.rank in joined]
    return read


def _passed_over(read: _ReadRun) -> Iterator[str]:
    if read.files.other_ranks:
        rank = read.run.run.rank
        but = ', but for their peaks of memory' if read.run.other_ranks else ''
        yield f'Rank {rank} was read; the other ranks were not{but}.'
    if read.files.older_runs:
        older = read.files.older_runs
        yield f'The newest run was read; {older} older one(s) were not.'


def _predict(
    forecast: Forecast,
    workload: Workload,
    pool: RunPool,
    left_out: Sequence[str],
    arguments: argparse.Namespace,
) -> Forecast:
    """What is predicted, and why some of what was asked for is not."""
    asked = list(dict.fromkeys(arguments.batch_size or [workload.batch_size]))
    sized = [at_batch_size(workload, batch) for batch in asked]
    predictions = tuple(
        predict_setting(one, *setting)
        for one in sized
        if isinstance(one, Workload)
        for setting in _list_settings(arguments)
    )
    reasons = [one.reason for one in sized if isinstance(one, NoPrediction)]
    if not predictions:
        said = reasons[:1]
        if len(arguments.run_folders) > 1:
            said += [*left_out, *pool.notes]
        return replace(forecast, workload=None, reason=' '.join(said))
    return replace(
        forecast,
        predictions=predictions,
        is_batch_asked=arguments.batch_size is not None,
        notes=(
            *forecast.notes,
            *reasons,
            *_warn_of_batches(asked, pool),
        ),
        memory=_report_memory(pool, arguments.batch_size),
    )


def _list_settings(arguments: argparse.Namespace) -> Iterator[tuple[int, int]]:
    for workers in dict.fromkeys(arguments.num_workers):
        # without workers nothing is prefetched
        factors = (
            arguments.prefetch_factor if workers else arguments.prefetch_factor[:1]
        )
        for prefetch in dict.fromkeys(factors):
            yield workers, prefetch


def _warn_of_batches(asked: Sequence[int | None], pool: RunPool) -> Iterator[str]:
    measured = {run.batch_size for run in pool.fitted if run.batch_size}
    far = [size for size in asked if size and measured and size > 2 * max(measured)]
    if far:
        yield (
            f'A batch size of {min(far)} is more than twice the largest that was '
            f'measured ({max(measured)}): the step against batch size may bend there.'
        )
    if len(measured) > 1 and isinstance(pool.memory, NoPrediction):
        yield pool.memory.reason


def _report_memory(pool: RunPool, asked: Sequence[int] | None) -> MemoryReport | None:
    fit = pool.memory
    if isinstance(fit, NoPrediction):
        return None
    return MemoryReport(
        fit=fit,
        rules=pool.memory_rules,
        batch_sizes=tuple(dict.fromkeys(asked or ())),
        card=fold_card_room(pool.newest),
    )
