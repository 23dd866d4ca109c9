from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import memory_kept
from benchmarks.harness import Figure
from benchmarks.memory_kept import keep_figures, read_kept

FIGURES = [
    Figure('detr: static bytes off', 0, 'bytes', '0', True),
    Figure('detr: activations off', None, '%', 'within 10', note='does not run'),
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(memory_kept, 'KEPT', tmp_path)
    return tmp_path


def test_figures_come_back_as_they_were():
    keep_figures('detr', False, FIGURES)
    assert read_kept('detr', False) == FIGURES
    # a run with CUDA judges more
    assert read_kept('detr', True) is None
    assert read_kept('retinanet', False) is None


def spoil(folder: Path, part: str, key: str, value: str) -> dict[str, Any]:
    path = folder / 'detr.json'
    body: dict[str, Any] = json.loads(path.read_text())
    assert key in body[part]
    body[part][key] = value
    path.write_text(json.dumps(body))
    return body


@pytest.mark.parametrize(
    ('part', 'key'),
    [
        ('machine', 'torch'),
        ('machine', 'mmdet'),
        ('sources', 'benchmarks/harness.py'),
        ('sources', 'mmgpu_hooks/version.py'),
    ],
)
def test_what_other_code_or_packages_measured_does_not_hold(folder, part, key):
    import mmgpu_hooks.version  # noqa: F401, of what is loaded the sources are kept

    keep_figures('detr', False, FIGURES)
    spoil(folder, part, key, 'another')
    assert read_kept('detr', False) is None


def test_the_name_of_a_gpu_does_not_count(folder):
    keep_figures('detr', False, FIGURES)
    spoil(folder, 'machine', 'GPU', 'another')
    assert read_kept('detr', False) == FIGURES


def test_a_torn_file_is_measured_again(folder):
    (folder / 'detr.json').write_text('{"machine": {')
    assert read_kept('detr', False) is None
