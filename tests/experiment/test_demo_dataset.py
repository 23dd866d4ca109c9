"""Tests the demo's data set: its boxes, and its files read back."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from mmgpu_hooks.experiment import demo_dataset
from mmgpu_hooks.experiment.demo_dataset import (
    CATEGORIES,
    paint_image,
    write_demo_dataset,
)
from mmgpu_hooks.schema.errors import UserError

SMALL = {'images': 6, 'width': 160, 'height': 120}


def read_files(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob('*'))
        if path.is_file()
    }


def test_objects_fill_their_boxes() -> None:
    black = np.zeros((240, 320, 3), np.uint8)
    for index in range(20):
        pixels, notes = paint_image(black, index)
        is_painted = np.any(pixels, axis=2)
        for note in notes:
            left, top, width, height = note['bbox']
            inside = is_painted[top : top + height, left : left + width]
            # each edge is touched, and the area is that of the shape
            assert inside.shape == (height, width)
            edges = inside[0], inside[-1], inside[:, 0], inside[:, -1]
            assert all(edge.any() for edge in edges)
            assert inside.sum() >= 0.9 * note['area']
        assert is_painted.sum() <= 1.1 * sum(note['area'] for note in notes)


def test_coco_and_opencv_read_what_was_written(tmp_path: Path) -> None:
    coco_module = pytest.importorskip('pycocotools.coco')
    root = tmp_path / 'demo'
    dataset = write_demo_dataset(root, **SMALL)
    assert dataset.root == root
    coco = coco_module.COCO(str(dataset.annotation_file))
    assert [c['name'] for c in coco.loadCats(coco.getCatIds())] == list(CATEGORIES)
    assert len(coco.getImgIds()) == 6
    for image in coco.loadImgs(coco.getImgIds()):
        pixels = cv2.imread(str(dataset.image_folder / image['file_name']))
        assert pixels.shape == (image['height'], image['width'], 3) == (120, 160, 3)
        assert coco.getAnnIds(imgIds=image['id'])
    files = list(dataset.image_folder.iterdir())
    assert sum(path.stat().st_size for path in files) == dataset.image_bytes


@pytest.mark.parametrize('damage', ['none', 'cut', 'other', 'interrupted'])
def test_a_complete_set_is_reused_and_any_other_written_anew(
    tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / 'demo'
    write_demo_dataset(root, **SMALL)
    whole = read_files(root)
    image = root / 'images' / 'demo_00003.jpg'
    if damage == 'cut':
        image.write_bytes(image.read_bytes()[:100])
    elif damage == 'other':
        write_demo_dataset(root, images=9, width=80, height=64)
    elif damage == 'interrupted':
        with monkeypatch.context() as patch:
            patch.setattr(demo_dataset, 'chain', lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                write_demo_dataset(root, **{**SMALL, 'images': 7})
    assert write_demo_dataset(root, **SMALL).is_reused is (damage == 'none')
    # the same bytes, whatever the threads
    assert read_files(root) == whole


def test_a_folder_that_cannot_be_used_is_said_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / 'mine').write_text('mine')
    with pytest.raises(UserError, match='found other files'):
        write_demo_dataset(tmp_path, **SMALL)
    with pytest.raises(NotADirectoryError):
        write_demo_dataset(tmp_path / 'mine' / 'demo', **SMALL)
    assert read_files(tmp_path) == {'mine': b'mine'}
