"""A real training on JPEG files that MMCV's own transforms load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from mmcv.transforms import Compose, LoadImageFromFile, Resize
from mmdet.datasets.transforms import PackDetInputs
from mmengine.model import BaseModel
from torch import nn
from torch.utils.data import Dataset

from benchmarks.predict import build_runner
from mmgpu_hooks.commands.main import main
from mmgpu_hooks.measure.loader import worker as fetch


class Photos(Dataset[Any]):
    """A photo of 1200 x 800, resized to 300 x 200."""

    def __init__(self, folder: Path, decoder: str) -> None:
        self._path = str(folder / 'photo.jpg')
        cv2.imwrite(self._path, np.random.randint(0, 255, (800, 1200, 3), np.uint8))
        self.metainfo: dict[str, Any] = {}
        self.pipeline = Compose(
            [
                LoadImageFromFile(imdecode_backend=decoder),
                Resize(scale=(300, 200)),
                PackDetInputs(meta_keys=('ori_shape', 'img_shape')),
            ]
        )

    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> Any:
        return self.pipeline({'img_path': self._path})


class NoModel(BaseModel):
    """Its step does nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, inputs: Any, data_samples: Any = None, mode: str = '') -> Any:
        return {'loss': self.weight.sum()}


@pytest.mark.parametrize('decoder', ['pillow', 'cv2'])
def test_smaller_files_come_first_and_pillow_is_found(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    decoder: str,
) -> None:
    # so short a training leaves little time to time its transforms
    monkeypatch.setattr(fetch, '_TIMING_SHARE', 1.0)
    photos = Photos(tmp_path, decoder)
    loader = {'batch_size': 1, 'num_workers': 0}
    runner = build_runner(tmp_path, NoModel(), photos, loader, epochs=1, interval=10)
    runner.train()
    (tmp_path / 'config.py').write_text('train_dataloader = dict(num_workers=0)\n')
    capsys.readouterr()
    words = [runner.work_dir, '--config', str(tmp_path / 'config.py')]
    assert main(['recommend', *words, '--dry-run', '--format', 'json']) == 0
    answer = json.loads(capsys.readouterr().out)
    found = {one['code']: one['detail'] for one in answer['findings']}
    assert ('MG114' in found) is (decoder == 'pillow')
    (advice,) = [one for one in answer['advice'] if 'LoadImageFromFile' in one]
    faster = {'pillow': "imdecode_backend='cv2'", 'cv2': 'turbojpeg'}[decoder]
    assert 0 < advice.index('16.0 times the pixels') < advice.index(faster)
