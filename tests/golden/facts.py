"""Collects the values in ``mmgpu``'s answers on a recorded run, for golden tests.

A case is a folder with evidence under ``run`` (or several ``run...``), perhaps a
``config.py``, and ``expected.json``. ``@CASE@`` in a file stands for the folder that
the case is laid out in.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mmgpu_hooks.commands.main import main

CASES = Path(__file__).parent
EXPECTED = 'expected.json'
PLACEHOLDER = '@CASE@'
SHARED_CONFIG = CASES / 'shared_config.py'
"""Config for the recorded runs that have none of their own."""

TOLERANCES = {'measured': (1e-6, 0.0), 'predicted': (0.02, 2.0)}
"""Allowed errors of measured and predicted values: relative, and percentage points."""

Json = dict[str, Any]
Ask = Callable[[list[str]], tuple[int, str]]


def list_cases() -> list[str]:
    """Returns the names of all recorded runs with expected facts."""
    return sorted(path.parent.name for path in CASES.glob(f'*/{EXPECTED}'))


def ask_in_process(words: list[str]) -> tuple[int, str]:
    """Runs ``mmgpu`` in this process; returns its exit code and output."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        code = main(words)
    return code, out.getvalue()


def gather_facts(
    case: Path, folder: Path, flags: list[str], ask: Ask = ask_in_process
) -> Json:
    """Copies a recorded run, and returns the facts that ``mmgpu`` answers about it.

    Args:
        case: Folder of the case.
        folder: Empty; the case is laid out in it.
        flags: Of ``recommend``, besides its runs.
        ask: Runs the command line.
    """
    lay_out(case, folder)
    runs = [str(path) for path in sorted(folder.glob('run*'))]
    config = folder / 'config.py'
    if not config.exists():
        config.write_bytes(SHARED_CONFIG.read_bytes())
    before = _files(folder)
    code, answer = _ask_json(ask, ['recommend', *runs, *flags])
    sizes = ['--batch-size', '2', '4', '8'] if '--allow-batch-size' in flags else []
    _, forecast = _ask_json(ask, ['predict', *runs, *sizes])
    _, compared = _ask_json(ask, ['compare', runs[0], runs[0]])
    written = sorted(_files(folder) - before)
    measured = {**dict(_measured(answer)), **dict(_compared(compared))}
    predicted = {**dict(_predicted(answer)), **dict(_forecast(forecast))}
    return {
        'exit': code,
        **_judged(answer),
        'written': {str(p): _changed(config, folder / p) for p in written},
        'measured': {
            key: value for key, value in measured.items() if value is not None
        },
        'predicted': {
            key: value for key, value in predicted.items() if value is not None
        },
    }


def near(kind: str, figures: Json) -> Json:
    """Returns expected values that compare equal within their tolerance."""
    relative, points = TOLERANCES[kind]
    return {
        key: pytest.approx(value, relative, points if key.endswith('_pct') else None)
        for key, value in figures.items()
    }


def lay_out(case: Path, folder: Path) -> None:
    """Copies a recorded run into a folder, whose path is inserted in the files."""
    for source in case.rglob('*'):
        if source.is_file() and source.name != EXPECTED:
            target = folder / source.relative_to(case)
            target.parent.mkdir(parents=True, exist_ok=True)
            text = source.read_bytes()
            target.write_bytes(text.replace(PLACEHOLDER.encode(), bytes(folder)))


def _files(folder: Path) -> set[Path]:
    found = (path for path in folder.rglob('*') if '__pycache__' not in path.parts)
    return {path.relative_to(folder) for path in found if path.is_file()}


def _ask_json(ask: Ask, words: list[str]) -> tuple[int, Json]:
    code, out = ask([*words, '--format', 'json'])
    return code, json.loads(out) if out else {}


def _changed(old: Path, new: Path) -> Json:
    """Returns removed and added lines of a rewritten file, and its SHA-256."""
    lines = [path.read_bytes().decode().splitlines() for path in (old, new)]
    return {
        'removed': [line for line in lines[0] if line not in lines[1]],
        'added': [line for line in lines[1] if line not in lines[0]],
        'sha256': hashlib.sha256(new.read_bytes()).hexdigest(),
    }


def _judged(answer: Json) -> Json:
    if not answer:
        return {}
    ranks, saves = answer['ranks'], answer['checkpoint_saves']
    return {
        'status': answer['status'],
        'verdict': answer['verdict']['name'],
        'confidence': answer['verdict']['confidence'],
        'findings': {
            finding['code']: finding['severity'] for finding in answer['findings']
        },
        'changes': {
            change['key']: [change['old'], change['new']]
            for change in answer['changes']
        },
        'save_causes': [save['cause'] for save in saves if save['is_slow']],
        'save_cures': [cure['name'] for cure in answer['save_cures']],
        'slowest_rank': ranks and [ranks['slowest'], ranks['part']],
        'advice': len(answer['advice']),
    }


NamedFigures = Iterator[tuple[str, Any]]


def _measured(answer: Json) -> NamedFigures:
    """Yields measured values in the answer of ``mmgpu recommend``, by name."""
    for key, count in answer.get('evidence', {}).items():
        yield f'count.{key}', count
    for finding in answer.get('findings', ()):
        yield f'share.{finding["code"]}', finding['share']
        if finding['code'] == 'MG202':
            for index, number in enumerate(
                re.findall(r'[\d.]+\d|\d', finding['detail'])
            ):
                yield f'gpu.{index}', float(number)
    for index, save in enumerate(answer.get('checkpoint_saves', ())):
        for key in ('wall_s', 'uncontended_s', 'gross_delay_s', 'net_delay_s'):
            yield f'save.{index}.{key}', save[key]
    ranks = answer.get('ranks') or {}
    yield 'ranks.lost_s', ranks.get('lost_s')
    for row in ranks.get('rows', ()):
        for key in ('data_wait_s', 'own_s', 'step_s', 'save_s', 'gpu_util_pct'):
            yield f'rank{row["rank"]}.{key}', row[key]
    yield 'validation.loop_s', answer.get('validation', {}).get('loop_s')


def _compared(compared: Json) -> NamedFigures:
    for figure in compared.get('figures', ()):
        yield figure['name'], figure['before'] and figure['before']['value']


def _predicted(answer: Json) -> NamedFigures:
    """Yields predicted values in the answer of ``mmgpu recommend``, by name."""
    yield 'headspace_pct', answer.get('verdict', {}).get('headspace_pct')
    for change in answer.get('changes', ()):
        for key in (
            'predicted_iter_s',
            'predicted_gain_pct',
            'predicted_gain_low_pct',
            'predicted_gain_high_pct',
        ):
            yield f'{change["key"]}.{key}', change[key]
    for cure in answer.get('save_cures', ()):
        for key in ('save_s', 'run_gross_s', 'run_net_s'):
            yield f'{cure["name"]}.{key}', cure[key]
    yield 'validation.gain_s', answer.get('validation', {}).get('gain_s')


def _forecast(forecast: Json) -> NamedFigures:
    workload = forecast.get('workload') or {}
    for cost in ('batch_time', 'batch_cpu', 'step'):
        yield f'workload.{cost}_s', workload.get(cost, {}).get('mean_s')
    for prediction in forecast.get('predictions', ()):
        setting = (
            f'{prediction["num_workers"]}_workers.batch_{prediction["batch_size"]}'
        )
        yield f'iter_s.{setting}', prediction['iter_time_s']
    memory = forecast.get('memory') or {}
    for peak in memory.get('peaks', ()):
        yield f'memory.{peak["batch_size"]}', peak['peak_bytes']
