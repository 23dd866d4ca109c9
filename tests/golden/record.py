"""Records the golden runs and answers: ``python tests/golden/record.py [CASE ...]``.

The answers to the evidence of the named cases, or of all, are recorded anew, into each
``expected.json``, and the facts that changed are printed. Of a named training, and of
``trainings`` and ``demo``, the evidence is recorded before. The evidence of the other
cases was planted: each figure in it is chosen.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / 'tests')]

from golden.facts import (  # noqa: E402
    CASES,
    EXPECTED,
    PLACEHOLDER,
    TOLERANCES,
    Json,
    gather_facts,
    near,
)
from golden.trainings import DEMO, TRAININGS  # noqa: E402

DEMO_RUNS = {
    'rtmdet_before': ('before', DEMO),
    'rtmdet_after': ('after', DEMO.replace('.py', '_recommended.py')),
}
GROUPS: dict[str, Iterable[str]] = {'trainings': TRAININGS, 'demo': DEMO_RUNS}


def run(*words: str, expected: int = 0) -> None:
    """Runs Python with the tests on its path."""
    paths = [str(ROOT), str(ROOT / 'tests'), os.environ.get('PYTHONPATH', '')]
    environ = {**os.environ, 'PYTHONPATH': os.pathsep.join(paths).rstrip(os.pathsep)}
    # torch >= 2.6 refuses MMEngine's checkpoints otherwise
    environ |= {'OMP_NUM_THREADS': '1', 'TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD': '1'}
    done = subprocess.run([sys.executable, *words], cwd=ROOT, env=environ)
    assert done.returncode == expected, done


def train_toy(name: str, folder: Path) -> None:
    """Runs a toy training, and stores its evidence as a golden run."""
    training = TRAININGS[name]
    launch = []
    if training.ranks > 1:
        launch = ['-m', 'torch.distributed.run', '--standalone']
        launch.append(f'--nproc_per_node={training.ranks}')
    words = [*launch, '-m', 'golden.trainings', name, str(folder)]
    run(*words, expected=-signal.SIGKILL if training.killed_after else 0)
    collect(name, folder / 'run', folder)


def train_demo(folder: Path) -> None:
    """Runs the demo; stores its runs before and after the advice as golden runs."""
    run('tools/demo.py', DEMO, '--work-dir', str(folder))
    for name, (run_folder, config) in DEMO_RUNS.items():
        collect(name, folder / run_folder, folder)
        shutil.copyfile(ROOT / config, CASES / name / 'config.py')


def collect(name: str, work_dir: Path, folder: Path) -> None:
    """Copies a run's evidence files to its golden folder, without local paths."""
    (vis_data,) = work_dir.glob('*/vis_data')
    found = sorted(vis_data.glob('gpu_efficiency*.jsonl'))
    target = CASES / name / 'run'
    target.mkdir(parents=True, exist_ok=True)
    for path in found:
        text = path.read_text()
        for ours in (str(folder), str(ROOT)):
            text = text.replace(ours, PLACEHOLDER)
        lines = text.splitlines(keepends=True)
        record = json.loads(lines[0])
        record['config_path'] = f'{PLACEHOLDER}/config.py'
        record['versions']['platform'] = 'Linux'
        lines[0] = json.dumps(record, separators=(',', ':')) + '\n'
        (target / path.name).write_text(''.join(lines))


def record_answer(case: Path) -> list[str]:
    """Rewrites a golden run's expected answers; returns a line per changed fact."""
    path = case / EXPECTED
    old = json.loads(path.read_text()) if path.exists() else {}
    flags = old.get('flags', [])
    with tempfile.TemporaryDirectory() as folder:
        facts = {'flags': flags, **gather_facts(case, Path(folder), flags)}
    for kind in TOLERANCES:
        known = near(kind, old.get(kind, {}))
        for key, figure in facts[kind].items():
            # no difference to read where nothing is to be seen
            if key in known and figure == known[key]:
                facts[kind][key] = old[kind][key]
    old = _flatten(old)
    path.write_text(json.dumps(facts, indent=1) + '\n')
    new = _flatten(facts)
    return [
        f'{case.name}: {key} {old.get(key)} -> {new.get(key)}'
        for key in {**old, **new}
        if old.get(key) != new.get(key)
    ]


def _flatten(facts: Json) -> Json:
    flat: Json = {}
    for key, value in facts.items():
        if isinstance(value, dict):
            flat |= {f'{key}.{name}': inner for name, inner in _flatten(value).items()}
        else:
            flat[key] = value
    return flat


def main(names: list[str]) -> None:
    """Records evidence files of the named cases anew, and the answers about them."""
    known = {path.parent.name for path in CASES.glob('*/run*')}.union(*GROUPS.values())
    named = {case for name in names for case in GROUPS.get(name, [name])}
    if named - known:
        sys.exit(f'expected cases or {", ".join(GROUPS)}, found {named - known}')
    for name in named & set(TRAININGS):
        with tempfile.TemporaryDirectory() as folder:
            train_toy(name, Path(folder))
    if named & set(DEMO_RUNS):
        with tempfile.TemporaryDirectory() as folder:
            train_demo(Path(folder))
    for name in sorted(named or known):
        for line in record_answer(CASES / name):
            print(line)


if __name__ == '__main__':
    main(sys.argv[1:])
