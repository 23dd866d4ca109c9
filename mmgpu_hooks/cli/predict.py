"""``mmgpu predict``: what other settings of the loader would give."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from mmgpu_hooks.cli import exit_codes
from mmgpu_hooks.cli.terminal import terminal_layout
from mmgpu_hooks.diagnosis.workload import fit_workload
from mmgpu_hooks.evidence.reader import read_evidence
from mmgpu_hooks.evidence.run_folder import EvidenceError, read_run_folder
from mmgpu_hooks.evidence.summary import fold_run
from mmgpu_hooks.modeling.prediction import (
    MOST_PREFETCH,
    MOST_WORKERS,
    predict_setting,
)
from mmgpu_hooks.records import LoaderWorkload, NoPrediction, Prediction
from mmgpu_hooks.report.predictions import (
    Forecast,
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
        'run_folder', type=Path, help='work_dir of a training; its newest run is read'
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


def predict_run(arguments: argparse.Namespace) -> Forecast:
    """Read and predict, without a word.

    Raises:
        EvidenceError: If there is nothing that can be read.
    """
    files = read_run_folder(arguments.run_folder)
    if files.evidence is None:
        raise EvidenceError(
            f'{files.plain}: expected evidence of GPUEfficiencyHook, found only the '
            'log of MMEngine, which does not tell what loading costs; train with the '
            'hook in the config.'
        )
    evidence = read_evidence(files.evidence)
    summary = fold_run(evidence)
    workload = fit_workload(summary, evidence.intervals)
    notes = list(evidence.notes)
    if files.other_ranks:
        notes.append(f'Rank {evidence.run.rank} was read; the other ranks were not.')
    if files.older_runs:
        notes.append(
            f'The newest run was read; {files.older_runs} older one(s) were not.'
        )
    if isinstance(workload, NoPrediction):
        return Forecast(
            run_path=evidence.path,
            status=summary.status,
            workload=None,
            reason=workload.reason,
            notes=tuple(notes),
        )
    return Forecast(
        run_path=evidence.path,
        status=summary.status,
        workload=workload,
        predictions=tuple(_predict(workload, arguments)),
        notes=tuple(notes),
    )


def _predict(
    workload: LoaderWorkload, arguments: argparse.Namespace
) -> Iterator[Prediction]:
    for workers in dict.fromkeys(arguments.num_workers):
        # without workers nothing is prefetched
        factors = (
            arguments.prefetch_factor if workers else arguments.prefetch_factor[:1]
        )
        for prefetch in dict.fromkeys(factors):
            found = predict_setting(workload, workers, prefetch)
            assert isinstance(found, Prediction)  # the batch size is the run's
            yield found
