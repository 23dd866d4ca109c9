"""Benchmark: gain in training time by following the summary's ``next`` line.

    python -m benchmarks.whole [--only NAME] [--quick] [--output]

Ordinary trainings from config files, with loader settings as people have them. Each is
trained as it is. Then its `next` line is run, and what that has written is trained.
Where something was planted, the best setting is known from how, and is trained, too;
and each as it is with ``tune=True``, which tunes the loader in the same training.
Each is trained twice, in turns, and the faster one counts; a training is slower where
the faster one exceeds the slower one before. All on two cores, with one thread for the
step. Two more end badly, one killed for memory and one that hangs: they are trained
with what is said of them, and must come to their end. About 35 minutes.

A training more is a config file in ``benchmarks/ordinary`` and a line in ``CASES``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness import (
    RESULTS,
    Benchmark,
    Figure,
    OtherLoad,
    at_least,
    at_most,
    exactly,
    find_evidence,
    say,
)
from benchmarks.markdown import render_table
from benchmarks.whole_ends import ENDINGS, Trainer, make_environ, play_ending
from benchmarks.whole_ends import QUICK as QUICK_ENDINGS
from benchmarks.whole_toys import write_truth
from benchmarks.whole_training import SECONDS
from mmgpu_hooks.experiment.demo_dataset import write_demo_dataset
from mmgpu_hooks.schema.values import FAST_METRIC

ROOT = RESULTS.parents[1]
GAIN_LIMIT_PCT = 75.0
"""Minimum gain of the advice, in per cent of the gain by hand-tuned settings."""
HOURS_LIMIT_PCT = 10.0
"""Largest error, in per cent, of the hours that a finding promises to save."""
TURNS, LIMIT_S = 2, 600.0
"""Number of trainings per setting, and time limit of a training in seconds."""
TUNED = {'default_hooks.gpu_efficiency.tune': True}
_ALIVE = dict(persistent_workers=True)
_OPTIMIZE = 'default_hooks.gpu_efficiency.optimize'


def loader(name: str, **settings: Any) -> dict[str, Any]:
    """Returns settings of a DataLoader as a dict with dotted keys."""
    return {f'{name}_dataloader.{key}': value for key, value in settings.items()}


@dataclass(frozen=True)
class Case:
    """Benchmark training as a user would configure it, with known faults.

    Attributes:
        config: Its config file.
        best: What one who knows what was planted would set by hand; empty where
            nothing is wrong.
        is_detector: True if it is one of MMDetection's, on the demo's images.
        offered: Setting that a finding offers, with the hours it saves; it is written
            by ``mmgpu set``, as the finding says.
        is_start: True if its start is what takes its time: its advice is then the
            optimisation that a finding names, and no setting.
    """

    config: str
    best: Mapping[str, Any] = field(default_factory=dict)
    is_detector: bool = False
    offered: str | None = None
    is_start: bool = False


ORDINARY = 'benchmarks/ordinary'
DEMO = 'RTMDet-tiny, no workers'
METRIC, IMAGES, CLASSES = 'the metric is the wall', 300, 80
CASES = {
    DEMO: Case(
        'configs/demo/rtmdet-tiny_demo.py',
        loader('train', num_workers=1, **_ALIVE),
        is_detector=True,
    ),
    'too many workers, saves': Case(
        f'{ORDINARY}/too_many_workers.py', loader('train', num_workers=2, **_ALIVE)
    ),
    'bound by validation': Case(
        f'{ORDINARY}/slow_validation.py', loader('val', num_workers=2, **_ALIVE)
    ),
    METRIC: Case(
        f'{ORDINARY}/slow_metric.py',
        {'val_evaluator.type': FAST_METRIC},
        offered='val_evaluator.type',
    ),
    'storage that waits': Case(
        f'{ORDINARY}/waiting_storage.py', loader('train', num_workers=6)
    ),
    'by iterations, no workers': Case(
        f'{ORDINARY}/by_iterations.py', loader('train', num_workers=1)
    ),
    'short epochs': Case(f'{ORDINARY}/short_epochs.py', loader('train', **_ALIVE)),
    'Faster R-CNN, bound by the step': Case(
        f'{ORDINARY}/faster_rcnn.py', is_detector=True
    ),
    'slow start': Case(
        f'{ORDINARY}/slow_start.py', {_OPTIMIZE: 'annotations'}, is_start=True
    ),
    'nothing wrong': Case(f'{ORDINARY}/nothing_wrong.py'),
}
QUICK = ('storage that waits', 'nothing wrong')


@dataclass(frozen=True)
class Training:
    """Duration and results of one benchmark training."""

    whole_s: float
    """Seconds from building the Runner to the end of the training."""
    times_s: Sequence[float]
    """Values of ``time`` (seconds of an iteration) in MMEngine's log, in order.

    The first one, which has the start in it, is left out."""
    next_line: str
    """Command in the summary's ``next`` line: the advised next step."""

    @property
    def iter_s(self) -> float:
        """Median seconds of an iteration, by MMEngine's log."""
        return statistics.median(self.times_s)


@dataclass
class Outcome:
    """Trainings before and after following the advice of the first training."""

    case: Case
    verdict: str
    changes: Mapping[str, Any]
    answer: str
    """Output of the advised command, as the user sees it."""
    before: list[Training] = field(default_factory=list)
    after: list[Training] = field(default_factory=list)
    """Trainings with the advised settings; empty if the advice changed nothing."""
    best: list[Training] = field(default_factory=list)
    tuned: list[Training] = field(default_factory=list)
    """Trainings with the original settings and ``tune=True``."""
    offered_s: float | None = None
    """Seconds that a finding promises to save by its setting."""

    @property
    def offered_off_pct(self) -> float | None:
        """Error in per cent of the saving that a finding promised."""
        saved_s = self.before[0].whole_s - fastest(self.after or self.before)
        if self.offered_s is None or saved_s <= 0:
            return None
        return 100 * abs(self.offered_s / saved_s - 1)

    @property
    def gain_share_pct(self) -> float | None:
        """Time saved by the advice, in per cent of that by hand-tuned settings."""
        before_s, best_s = fastest(self.before), fastest(self.best)
        if not self.case.best or best_s >= before_s:
            return None
        after_s = fastest(self.after or self.before)
        return 100 * (before_s - after_s) / (before_s - best_s)

    @property
    def is_slower(self) -> bool:
        """True if training became slower by the advice, beyond the noise of repeats."""
        slowest_s = max(training.whole_s for training in self.before)
        return bool(self.after) and fastest(self.after) > slowest_s


def fastest(trainings: Sequence[Training]) -> float:
    """Returns the seconds of the fastest training; infinity without trainings."""
    return min((training.whole_s for training in trainings), default=float('inf'))


def prepare(folder: Path, names: Sequence[str]) -> None:
    """Copies the benchmark configs and the demo's images into a folder.

    The tool writes beside a config, and a checkout is not to be littered.
    """
    shutil.rmtree(folder, ignore_errors=True)
    for configs in (ORDINARY, 'configs'):
        ignored = shutil.ignore_patterns('__pycache__', '*_recommended.py')
        shutil.copytree(ROOT / configs, folder / configs, ignore=ignored)
    if METRIC in names:
        write_truth(folder / 'data' / 'metric.json', IMAGES, CLASSES)
    if any(CASES[name].is_detector for name in names):
        # written once, and kept for the next run
        kept = folder.with_name('bench_whole_demo')
        write_demo_dataset(kept)
        (folder / 'data').mkdir(exist_ok=True)
        (folder / 'data' / 'demo').symlink_to(kept.resolve())


def run(folder: Path, words: Sequence[str]) -> str:
    """Runs a command in a folder and returns its output.

    Raises:
        SystemExit: If it fails.
    """
    done = subprocess.run(
        [sys.executable, '-W', 'ignore', '-m', *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        # what an earlier benchmark kept is no start of this one's
        env={**make_environ(ROOT), 'MMGPU_CACHE': str(folder / 'annotations')},
    )
    if done.returncode:
        tail = '\n'.join(done.stdout.splitlines()[-15:])
        raise SystemExit(f'expected `{shlex.join(words)}` to end with 0:\n{tail}')
    return done.stdout


def train(
    folder: Path, config: str, work_dir: str, settings: Mapping[str, Any] | None = None
) -> Training:
    """Trains a config in a child process."""
    words = ['benchmarks.whole_training', config, work_dir, json.dumps(settings or {})]
    console = run(folder, words)
    (scalars,) = (folder / work_dir).glob('*/vis_data/scalars.json')
    lines = [json.loads(line) for line in scalars.read_text().splitlines()]
    # the first line has the start in it
    times = [line['time'] for line in lines if 'loss' in line][1:]
    found = re.findall(r'^ +next +(\S.*)$', console, re.MULTILINE)
    if not found:
        raise SystemExit(f'expected the summary of {config} to end with what to do')
    whole_s = float((folder / work_dir / SECONDS).read_text())
    say(f'{work_dir}: {whole_s:.1f} s')
    return Training(whole_s, times, found[-1])


def follow(folder: Path, next_line: str) -> str | None:
    """Runs the command of the summary's ``next`` line; returns the new config's path.

    Returns:
        The config that is to be trained; ``None`` without one.
    """
    words = shlex.split(next_line)
    if words[0] in ('python', 'train'):
        # a script before it, `-m MODULE`, or nothing
        return words[-1]
    if words[0] != 'mmgpu':
        raise SystemExit(f'expected a command of mmgpu, or a training: {next_line}')
    answer = run(folder, ['mmgpu_hooks', *words[1:]])
    written = re.search(r'^Written +(\S.*)$', answer, re.MULTILINE)
    return written[1] if written else None


def read_loaded(folder: Path, config: str, settings: Mapping[str, Any]) -> Any:
    """Loads a config as MMEngine does, with some settings overridden."""
    from mmengine.config import Config

    loaded = Config.fromfile(folder / config, import_custom_modules=False)
    loaded.merge_from_dict(dict(settings))
    return loaded.to_dict()


def play(name: str, folder: Path, turns: int, load: list[float]) -> Outcome:
    """Trains a benchmark case before and after the advice, and with its best settings.

    Args:
        name: Of the case.
        folder: Of the configs; trainings go below it.
        turns: Trainings of each setting.
        load: Gets the share of the machine that other programs used in each training.
    """
    case = CASES[name]
    runs = f'work_dirs/{Path(case.config).stem}'

    def measure(what: str, config: str, **settings: Any) -> Training:
        watch = OtherLoad()
        trained = train(folder, config, f'{runs}/{what}', settings)
        load.append(watch.read_pct())
        return trained

    before = measure('before_1', case.config)
    written = follow(folder, before.next_line)
    # what a user reads who asks why, and the same for the table
    evidence = find_evidence(folder / runs / 'before_1').relative_to(folder)
    asked = ['mmgpu_hooks', 'recommend', str(evidence)]
    answer = run(folder, asked)
    judged = json.loads(run(folder, [*asked, '--dry-run', '--format', 'json']))
    changes = {change['key']: change['new'] for change in judged['changes']}
    if case.is_start:
        named = re.findall(r"optimize='(\w+)'", json.dumps(judged['findings']))
        cure = {_OPTIMIZE: ','.join(dict.fromkeys(named))} if named else {}
        return play_start(
            case, judged['verdict']['name'], cure, answer, before, measure
        )
    outcome = Outcome(case, judged['verdict']['name'], changes, answer, [before])
    if case.offered is not None:
        written = offer(folder, case, judged, outcome)
    is_best = written is not None and read_loaded(folder, written, {}) == read_loaded(
        folder, case.config, case.best
    )
    for turn in range(1, turns + 1):
        if written is not None:
            outcome.after.append(measure(f'after_{turn}', written))
        if case.best and not is_best:
            trained = measure(f'best_{turn}', case.config, **case.best)
            outcome.best.append(trained)
        outcome.tuned.append(measure(f'tuned_{turn}', case.config, **TUNED))
        if turn < max(turns, 2):
            outcome.before.append(measure(f'before_{turn + 1}', case.config))
    if is_best:
        outcome.best = outcome.after
    return outcome


def offer(folder: Path, case: Case, judged: Any, outcome: Outcome) -> str:
    """Writes a config with the setting that a finding proposes; returns its path."""
    written, setting = f'{Path(case.config).stem}_offered.py', case.offered or ''
    target = str(Path(case.config).with_name(written))
    words = [case.config, f'{setting}={case.best[setting]}', '--output', target]
    run(folder, ['mmgpu_hooks', 'set', *words])
    hours = [
        each['whole']
        for each in judged.get('saved_hours', [])
        if each['keys'] == [setting]
    ]
    outcome.offered_s = 3600 * hours[0] if hours else None
    outcome.changes = {**outcome.changes, setting: case.best[setting]}
    return target


def play_start(
    case: Case,
    verdict: str,
    cure: Mapping[str, Any],
    answer: str,
    before: Training,
    measure: Callable[..., Training],
) -> Outcome:
    """Repeats a training with a slow start, without and with advised optimisations.

    The first of these keeps what the second one finds.
    """
    outcome = Outcome(case, verdict, cure, answer, [before])
    outcome.before.append(measure('before_2', case.config))
    for turn in (1, 2) if cure else ():
        outcome.after.append(measure(f'after_{turn}', case.config, **cure))
    if cure == case.best:
        outcome.best = outcome.after
    else:
        outcome.best = [
            measure(f'best_{turn}', case.config, **case.best) for turn in (1, 2)
        ]
    return outcome


def judge_outcome(name: str, outcome: Outcome) -> Iterator[Figure]:
    """Returns figures on one case: time saved by the advice, against best settings."""
    before_s, after_s = fastest(outcome.before), fastest(outcome.after)
    if outcome.case.best:
        note = f'{before_s:.1f} s before, {after_s:.1f} s after'
        note += f', {fastest(outcome.best):.1f} s at best'
        label = f'{name}: gain, of what the best setting gives'
        yield at_least(label, outcome.gain_share_pct, GAIN_LIMIT_PCT, '%', note)
        if outcome.case.offered is not None:
            label = f'{name}: hours that the finding offers, off'
            said = f'said {outcome.offered_s or 0.0:.1f} s'
            yield at_most(label, outcome.offered_off_pct, HOURS_LIMIT_PCT, '%', said)
    else:
        label = f'{name}: settings changed'
        yield exactly(label, len(outcome.changes), 0, note=outcome.verdict)


def list_figures(played: Mapping[str, Outcome]) -> Iterator[Figure]:
    """Returns figures over all trainings: time saved by advice, and false advice."""
    planted = [outcome for outcome in played.values() if outcome.case.best]
    healthy = [outcome for outcome in played.values() if not outcome.case.best]
    if planted:
        less_pct = [
            100
            * (1 - fastest(outcome.after or outcome.before) / fastest(outcome.before))
            for outcome in planted
        ]
        note = f'{min(less_pct):.0f} to {max(less_pct):.0f} %'
        name = 'something planted: time less after the advice, median'
        yield Figure(name, statistics.median(less_pct), '%', note=note)
    if healthy:
        quiet = sum(not outcome.changes for outcome in healthy)
        name = 'nothing to do, and nothing was said'
        yield exactly(name, quiet, len(healthy), f'of {len(healthy)}')
    slower = [name for name, outcome in played.items() if outcome.is_slower]
    yield exactly(
        'slower afterwards than before', len(slower), 0, note=', '.join(slower)
    )
    for name, outcome in played.items():
        yield from judge_outcome(name, outcome)


def phrase_changes(changes: Mapping[str, Any]) -> str:
    """Returns a text of changed settings, each named by its key's last part."""
    words = {
        key.replace('train_dataloader.', '').replace('_dataloader.', ' '): value
        for key, value in changes.items()
    }
    return ', '.join(f'{key}={value}' for key, value in words.items()) or 'nothing'


def render_cases(played: Mapping[str, Outcome]) -> str:
    """Renders a table of the trainings: times before and after, verdict, changes."""
    head = ['training', 'before', 'after', 'less', 'tune=True', 'iteration', 'verdict']
    head.append('changed')
    rows = []
    for name, outcome in played.items():
        before_s, after = fastest(outcome.before), outcome.after or outcome.before
        iterations = [
            1000 * min(t.iter_s for t in some) for some in (outcome.before, after)
        ]
        rows.append(
            [
                name,
                f'{before_s:.1f} s',
                f'{fastest(after):.1f} s' if outcome.after else '',
                f'{100 * (1 - fastest(after) / before_s):.0f} %'
                if outcome.after
                else '',
                f'{fastest(outcome.tuned):.1f} s' if outcome.tuned else '',
                ' -> '.join(
                    f'{ms:.0f} ms' for ms in iterations[: 1 + bool(outcome.after)]
                ),
                outcome.verdict,
                phrase_changes(outcome.changes),
            ]
        )
    return render_table(head, rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark: trains every case before and after, and prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument('--only', default='', help='cases whose name holds this')
    benchmark = Benchmark('whole', __doc__ or '', argv, parser=parser)
    names = [
        name
        for name in (QUICK if benchmark.is_quick else CASES)
        if benchmark.options.only in name
    ]
    endings = [
        name
        for name in (QUICK_ENDINGS if benchmark.is_quick else ENDINGS)
        if benchmark.options.only in name
    ]
    if not names and not endings:
        listed = ', '.join((*CASES, *ENDINGS))
        parser.error(f'expected a part of a name of {listed}')
    # the cores that the best settings are meant for
    os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:2]))
    folder = Path('work_dirs/bench_whole').resolve()
    prepare(folder, names)
    played = {
        name: play(
            name, folder, 1 if benchmark.is_quick else TURNS, benchmark.shares_pct
        )
        for name in names
    }
    benchmark.add(*list_figures(played))
    trainer = Trainer(folder, make_environ(ROOT))
    for name in endings:
        benchmark.add(*play_ending(name, trainer, folder))
    parts = [render_cases(played)]
    if DEMO in played:
        answer = played[DEMO].answer.strip()
        parts.append(f'What was said of {DEMO}:\n\n```text\n{answer}\n```')
    return benchmark.finish('\n\n'.join(parts))


if __name__ == '__main__':
    sys.exit(main())
