"""Benchmark: errors of recorded validation parts, and of forecasts of a training's end.

    python -m benchmarks.validation [--quick] [--output]

Validations are planted: loading, forward pass, ``process``, two metrics, gathering and
waiting on two gloo ranks, saving the best, results that grow. What is planted stamps
itself; each part must be within 2 % or 10 ms of that. The parts of RTMDet's validation
on the demo must add up to its wall clock within 1 %. Then whole trainings: what is
forecast after a tenth of each is held against its true end, beside MMEngine's ``eta``
at that iteration. Three minutes.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import (
    RESULTS,
    Benchmark,
    Figure,
    at_most,
    quantile,
    say,
)
from benchmarks.markdown import render_table
from benchmarks.validation_training import CASES, ETAS, LENGTHS, TRUTH, Planted
from mmgpu_hooks.experiment.demo_dataset import write_demo_dataset
from mmgpu_hooks.judge.ending import EndForecaster
from mmgpu_hooks.schema.recorded import IntervalRecord, ValidationRecord
from mmgpu_hooks.schema.run import RunEvidence, read_evidence
from mmgpu_hooks.schema.run_folder import evidence_name

ROOT = RESULTS.parents[1]
REL, ABS_S, CLOSES_WITHIN_PCT = 0.02, 0.01, 1.0
MEDIAN_PCT, P90_PCT = 5.0, 12.0
LIMIT_S = 300.0
QUICK_CASES, QUICK_LENGTHS = ('two metrics', 'two ranks'), ('epochs', 'slows down')
_TENTH = 0.1
_PARTS = ('data_wait', 'forward', 'process', 'metric', 'save')
"""Names of validation parts whose true seconds the training records."""


def train(name: str, folder: Path, ranks: int = 1, *more: str) -> None:
    """Trains a benchmark case in one child process, or in one child process per rank.

    Raises:
        SystemExit: If it fails.
    """
    words = ['-m', 'benchmarks.validation_training', name, str(folder), *more]
    if ranks > 1:
        starter = ['-m', 'torch.distributed.run', '--standalone']
        words = [*starter, f'--nproc_per_node={ranks}', *words]
    paths = [str(ROOT), os.environ.get('PYTHONPATH', '')]
    environ = {'PYTHONPATH': os.pathsep.join(filter(None, paths))}
    done = subprocess.run(
        [sys.executable, '-W', 'ignore', *words],
        # MMEngine gathers through a folder of the current one
        cwd=ROOT if name == 'demo' else folder.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        env={**os.environ, **environ, 'OMP_NUM_THREADS': '1', 'MKL_NUM_THREADS': '1'},
    )
    if done.returncode:
        tail = '\n'.join(done.stdout.splitlines()[-15:])
        raise SystemExit(f'expected {name} to train:\n{tail}')


def read_rank(folder: Path, rank: int = 0) -> RunEvidence:
    """Reads what the hook recorded in the training of one rank (its evidence file)."""
    (path,) = folder.rglob(evidence_name(rank))
    return read_evidence(path)


def read_truth(folder: Path, ranks: int) -> list[list[dict[str, float]]]:
    """Returns the true seconds of each validation part, by rank and validation."""
    texts = [(folder / TRUTH.format(rank)).read_text() for rank in range(ranks)]
    return [json.loads(text) for text in texts]


def find_planted(truths: Sequence[Mapping[str, float]], rank: int) -> dict[str, float]:
    """Returns the true seconds of each part of one rank's validation.

    Args:
        truths: What each rank stamped in it.
        rank: Whose.
    """
    own = truths[rank]
    parts = {part: own[part] for part in _PARTS if part in own}
    if len(truths) > 1:
        parts['gather'] = own.get('written', 0.0) + own.get('read', 0.0)
        # all have written when the last one has; then rank 0 reads and computes
        until = max(truth['written_at'] for truth in truths)
        if rank:
            until = truths[0]['computed_at']
        parts['rank_wait'] = until - own['entered_at'] - own['written']
    return parts


@dataclass(frozen=True)
class Off:
    """Error of the recorded seconds of one part of a validation."""

    case: str
    part: str
    planted_s: float
    measured_s: float

    @property
    def share(self) -> float:
        """Error of the part divided by its tolerance."""
        allowed_s = max(REL * self.planted_s, ABS_S)
        return abs(self.measured_s - self.planted_s) / allowed_s


def compare(
    case: str, truths: list[list[dict[str, float]]], ranks: Sequence[RunEvidence]
) -> Iterator[Off]:
    """Compares the recorded seconds of each validation part with the true ones."""
    for rank, evidence in enumerate(ranks):
        for number, record in enumerate(evidence.validations):
            of_all = [validations[number] for validations in truths]
            planted, measured = find_planted(of_all, rank), record.parts_s or {}
            for part, seconds in planted.items():
                yield Off(case, part, seconds, measured.get(part, 0.0))


def find_closing_pct(
    records: Sequence[ValidationRecord], walls_s: list[float]
) -> float:
    """Returns the largest gap in per cent between a validation and its parts' sum."""
    return max(
        100 * abs(sum((record.parts_s or {}).values()) / wall_s - 1)
        for record, wall_s in zip(records, walls_s)
    )


def play(name: str, folder: Path) -> Iterator[Figure]:
    """Trains a benchmark case; returns figures on its validations' recorded parts."""
    planted: Planted = CASES[name]
    say(name)
    train(name, folder, planted.ranks)
    ranks = [read_rank(folder, rank) for rank in range(planted.ranks)]
    truths = read_truth(folder, planted.ranks)
    offs = [*compare(name, truths, ranks)]
    worst: dict[str, Off] = {}
    for off in offs:
        if off.part not in worst or off.share > worst[off.part].share:
            worst[off.part] = off
    for part, off in worst.items():
        ms = 1000 * (off.measured_s - off.planted_s)
        note = f'planted {off.planted_s:.3f} s, off by {ms:+.1f} ms'
        yield at_most(
            f'{name}: {part}, of 2 % or 10 ms', 100 * off.share, 100.0, '%', note
        )
    walls_s = [truth['wall'] for truth in truths[0]]
    closing_pct = find_closing_pct(ranks[0].validations, walls_s)
    yield at_most(f'{name}: parts miss', closing_pct, CLOSES_WITHIN_PCT, '% of it')
    if planted.kept_bytes:
        kept = planted.kept_bytes * planted.batches
        found = [record.result_bytes or 0 for record in ranks[0].validations]
        off_pct = max(100 * abs(size / kept - 1) for size in found)
        yield at_most(f'{name}: bytes', off_pct, 5.0, '% off')


def play_demo(folder: Path, root: Path) -> Iterator[Figure]:
    """Validates RTMDet; returns how far the sum of its parts is off its duration."""
    say('RTMDet on the demo')
    write_demo_dataset(root)
    train('demo', folder, 1, str(root.resolve()))
    evidence, (truth,) = read_rank(folder), read_truth(folder, 1)
    walls_s = [validation['wall'] for validation in truth]
    closing_pct = find_closing_pct(evidence.validations, walls_s)
    record = evidence.validations[0]
    shares = ', '.join(
        f'{part} {100 * seconds / record.wall_s:.1f} %'
        for part, seconds in (record.parts_s or {}).items()
    )
    name = 'RTMDet on the demo: parts miss'
    yield at_most(name, closing_pct, CLOSES_WITHIN_PCT, '% of it', shares)


@dataclass(frozen=True)
class Forecast:
    """Predicted end of a training, made after the first tenth of the training."""

    name: str
    true_s: float
    """True seconds from the prediction to the end of the training."""
    said_s: float | None
    """Seconds until the end as predicted by GPUEfficiencyHook."""
    low_s: float
    high_s: float
    eta_s: float
    """Seconds until the end as predicted by MMEngine's ETA."""

    def off_pct(self, seconds: float | None) -> float:
        """Returns the error of a predicted end, in per cent of the true seconds."""
        return 100.0 if seconds is None else 100 * (seconds / self.true_s - 1)


def forecast(name: str, folder: Path) -> Forecast:
    """Runs a training, and predicts its end from its first tenth."""
    say(name)
    train(name, folder)
    evidence = read_rank(folder)
    whole = max(interval.iteration for interval in evidence.intervals)
    forecaster, cut = EndForecaster(evidence.run), _cut(evidence, _TENTH * whole)
    for record in evidence.intervals:
        if record.iteration <= cut.iteration:
            forecaster.add_interval(record)
    for save in evidence.save_records:
        if save.iteration < cut.iteration:
            forecaster.add_save(save)
    passed_s = evidence.run.build_s + cut.elapsed_s
    for validation in evidence.validations:
        if validation.iteration <= cut.iteration:
            forecaster.add_validation(validation)
        if validation.iteration == cut.iteration:
            # the hook says the end after a validation, not before the one that is due
            passed_s += validation.wall_s
    ending = forecaster.forecast()
    assert evidence.end is not None and evidence.end.duration_s is not None
    etas = json.loads((folder / ETAS).read_text())
    return Forecast(
        name=name,
        true_s=evidence.end.duration_s - passed_s,
        said_s=None if ending is None else 3600 * ending.hours_left,
        low_s=0.0 if ending is None else 3600 * ending.hours_left_low,
        high_s=0.0 if ending is None else 3600 * ending.hours_left_high,
        eta_s=etas[str(cut.iteration)],
    )


def _cut(evidence: RunEvidence, iterations: float) -> IntervalRecord:
    """Returns the log interval at which a tenth of the training has passed."""
    return next(
        interval for interval in evidence.intervals if interval.iteration >= iterations
    )


def judge_forecasts(forecasts: Sequence[Forecast]) -> Iterator[Figure]:
    """Returns the errors of all trainings' predicted ends, as rows of the result."""
    ours = [abs(each.off_pct(each.said_s)) for each in forecasts]
    theirs = [abs(each.off_pct(each.eta_s)) for each in forecasts]
    count = f'{len(forecasts)} trainings'
    name = 'end after a tenth: off, median'
    yield at_most(name, statistics.median(ours), MEDIAN_PCT, '%', count)
    name = 'end after a tenth: off, 90th percentile'
    yield at_most(name, quantile(ours, 0.9), P90_PCT, '%', count)
    note = f'median {statistics.median(theirs):.0f} %'
    name = "MMEngine's eta after a tenth: off, 90th percentile"
    yield Figure(name, quantile(theirs, 0.9), '%', note=note)
    inside = sum(each.low_s <= each.true_s <= each.high_s for each in forecasts)
    yield Figure('true end inside of the interval', inside, f'of {len(forecasts)}')


def render_forecasts(forecasts: Sequence[Forecast]) -> str:
    """Renders a table of predicted and true ends, one row per training."""
    head = ('training', 'left after a tenth', 'said', 'off', "MMEngine's eta", 'off')
    rows = [
        (
            each.name,
            f'{each.true_s:.1f} s',
            'unknown' if each.said_s is None else f'{each.said_s:.1f} s',
            f'{each.off_pct(each.said_s):+.1f} %',
            f'{each.eta_s:.1f} s',
            f'{each.off_pct(each.eta_s):+.1f} %',
        )
        for each in forecasts
    ]
    return render_table(head, rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark: judges recorded validation parts and forecasts of the end."""
    benchmark = Benchmark('validation', __doc__ or '', argv)
    cases, lengths = tuple(CASES), tuple(LENGTHS)
    if benchmark.is_quick:
        cases, lengths = QUICK_CASES, QUICK_LENGTHS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number, case in enumerate(cases):
            benchmark.add(*play(case, folder / f'case_{number}'))
        if not benchmark.is_quick:
            # written once, and kept for the next run
            root = Path('work_dirs/bench_whole_demo')
            benchmark.add(*play_demo(folder / 'demo', root))
        forecasts = [
            forecast(case, folder / f'length_{number}')
            for number, case in enumerate(lengths)
        ]
        shutil.rmtree(folder / '.dist_test', ignore_errors=True)
    benchmark.add(*judge_forecasts(forecasts))
    return benchmark.finish(render_forecasts(forecasts))


if __name__ == '__main__':
    sys.exit(main())
