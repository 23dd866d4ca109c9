"""Tests that real W&B and MLflow stores contain a training's verdict."""

from __future__ import annotations

import importlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from mmgpu_hooks.schema.lines import decode_line
from mmgpu_hooks.schema.recorded import VerdictRecord
from mmgpu_hooks.show.summary_fields import list_summary_fields
from training.recommended import SCRIPT_CODE, train, write_configs
from training.toy import find_evidence

LOCAL = {'type': 'LocalVisBackend'}
BLOCK_BYTES, HEADER_BYTES, FULL, LAST = 2**15, 7, 1, 4


def find_fields(work_dir: Path) -> dict[str, Any]:
    """Returns the verdict's fields from a run's evidence."""
    records = map(decode_line, find_evidence(work_dir).read_bytes().splitlines())
    (verdict,) = (record for record in records if isinstance(record, VerdictRecord))
    fields: dict[str, Any] = {**list_summary_fields(verdict)}
    assert fields['mmgpu/verdict'] == 'data_bound_workers'
    assert fields['mmgpu/recommendation'].startswith('train_dataloader.num_workers 0 ')
    assert fields['mmgpu/ledger/data_wait_pct'] > 20
    return fields


def read_wandb(path: Path) -> dict[str, Any]:
    """Returns the summary in W&B's offline store, parsed from its log format."""
    messages = importlib.import_module('wandb.proto.wandb_internal_pb2')
    data, place, begun = path.read_bytes(), len(b':W&B') + 3, b''
    summary: dict[str, Any] = {}
    while place < len(data):
        left = BLOCK_BYTES - place % BLOCK_BYTES
        if left < HEADER_BYTES:
            place += left
            continue
        length, kind = struct.unpack_from('<HB', data, place + 4)
        place += HEADER_BYTES + length
        begun += data[place - length : place]
        if kind in (FULL, LAST):
            items = messages.Record.FromString(begun).summary.update
            summary.update({item.key: json.loads(item.value_json) for item in items})
            begun = b''
    return summary


def train_with(folder: Path, backend: dict[str, Any]) -> Path:
    """Trains with an additional visualisation backend; returns the work_dir."""
    options = {'visualizer.vis_backends': [LOCAL, backend]}
    ended = train(write_configs(folder), folder / 'run', options=options)
    assert ended.code == SCRIPT_CODE, ended.console
    assert 'switched off' not in ended.console
    return folder / 'run'


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Makes W&B work offline."""
    pytest.importorskip('wandb', exc_type=ImportError)
    # MMEngine has it copy all scripts below
    monkeypatch.chdir(tmp_path)
    for name, value in (('MODE', 'offline'), ('SILENT', 'true'), ('CONSOLE', 'off')):
        monkeypatch.setenv(f'WANDB_{name}', value)


def test_wandb_has_them_as_summary_fields(tmp_path, offline):
    work_dir = train_with(tmp_path, {'type': 'WandbVisBackend'})
    (path,) = work_dir.rglob('offline-run-*/*.wandb')
    summary = read_wandb(path)
    found = {name: summary[name] for name in summary if name.startswith('mmgpu/')}
    assert found == pytest.approx(find_fields(work_dir))


@pytest.mark.slow
def test_mlflow_has_them_as_tags_and_metrics(tmp_path):
    pytest.importorskip('sqlalchemy', exc_type=ImportError)
    mlflow = pytest.importorskip('mlflow', exc_type=ImportError)
    store = f'sqlite:///{tmp_path / "mlflow.db"}'
    work_dir = train_with(
        tmp_path,
        {
            'type': 'MLflowVisBackend',
            'exp_name': 'toys',
            'tracking_uri': store,
            'artifact_location': (tmp_path / 'artifacts').as_uri(),
            # MLflow's parameters would be of the whole config
            'tracked_config_keys': ['train_cfg'],
        },
    )
    client = mlflow.MlflowClient(tracking_uri=store)
    experiment = client.get_experiment_by_name('toys')
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == 'FINISHED'
    kept = {**run.data.tags, **run.data.metrics}
    found = {name: kept[name] for name in kept if name.startswith('mmgpu/')}
    assert found == pytest.approx(find_fields(work_dir))
    assert 'loss' in run.data.metrics
