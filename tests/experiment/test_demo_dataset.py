"""The demo's data set: its plan by arithmetic, its files by reading them back."""

from __future__ import annotations

import json
from collections import namedtuple
from pathlib import Path

import pytest

from mmgpu_hooks.experiment import demo_dataset
from mmgpu_hooks.experiment.demo_dataset import (
    CATEGORIES,
    DEMO_SPEC,
    DemoDatasetError,
    DemoSpec,
    format_coco,
    plan_image,
    write_demo_dataset,
)

SMALL = {'images': 6, 'width': 160, 'height': 120}


def read_files(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob('*'))
        if path.is_file()
    }


def test_plan_depends_on_seed_and_index_alone() -> None:
    spec = DemoSpec(images=6, width=160, height=120, seed=3)
    longer = DemoSpec(images=60, width=160, height=120, seed=3)
    other = DemoSpec(images=6, width=160, height=120, seed=4)

    assert plan_image(spec, 2) == plan_image(longer, 2)
    assert plan_image(spec, 2).objects != plan_image(spec, 3).objects
    assert plan_image(spec, 2).objects != plan_image(other, 2).objects


@pytest.mark.parametrize(('width', 'height'), [(64, 64), (160, 120), (6000, 4000)])
def test_boxes_lie_inside_the_image(width: int, height: int) -> None:
    spec = DemoSpec(images=50, width=width, height=height, seed=0)
    plans = [plan_image(spec, index) for index in range(spec.images)]

    boxes = [note['bbox'] for note in format_coco(spec, plans)['annotations']]

    assert len(boxes) >= 3 * spec.images
    for left, top, box_width, box_height in boxes:
        assert 0 <= left < left + box_width <= width
        assert 0 <= top < top + box_height <= height
        assert box_width >= 4
        assert box_height >= 4


def test_both_categories_appear_in_the_demo() -> None:
    objects = [shape for i in range(8) for shape in plan_image(DEMO_SPEC, i).objects]

    assert {shape.category for shape in objects} == set(CATEGORIES)


def test_coco_and_opencv_read_what_was_written(tmp_path: Path) -> None:
    cv2 = pytest.importorskip('cv2')
    coco_module = pytest.importorskip('pycocotools.coco')

    written = write_demo_dataset(tmp_path / 'demo', **SMALL)

    coco = coco_module.COCO(str(written.annotation_file))
    assert [c['name'] for c in coco.loadCats(coco.getCatIds())] == list(CATEGORIES)
    assert len(coco.getImgIds()) == written.images == 6
    for image in coco.loadImgs(coco.getImgIds()):
        pixels = cv2.imread(str(written.image_folder / image['file_name']))
        assert pixels.shape == (image['height'], image['width'], 3) == (120, 160, 3)
        assert coco.getAnnIds(imgIds=image['id'])
    files = list(written.image_folder.iterdir())
    assert not any(path.is_symlink() for path in files)
    assert sum(path.stat().st_size for path in files) == written.image_bytes


def test_objects_are_painted_in_their_boxes() -> None:
    np = pytest.importorskip('numpy')
    pytest.importorskip('cv2')
    from mmgpu_hooks.experiment.demo_dataset import ImagePlan, paint_image

    spec = DemoSpec(images=40, width=320, height=240, seed=1)
    black = np.zeros((spec.height, spec.width, 3), np.uint8)
    for index in range(spec.images):
        for shape in plan_image(spec, index).objects:
            plan = ImagePlan('', 0, (0, 0), False, (1.0, 1.0, 1.0), (shape,))
            rows, columns = paint_image(plan, [black]).any(axis=2).nonzero()
            right, bottom = shape.left + shape.width, shape.top + shape.height
            assert (columns.min(), columns.max() + 1) == (shape.left, right)
            assert (rows.min(), rows.max() + 1) == (shape.top, bottom)
            assert len(rows) == pytest.approx(shape.area, rel=0.1)


def test_same_seed_same_bytes_whatever_the_threads(tmp_path: Path) -> None:
    pytest.importorskip('cv2')
    write_demo_dataset(tmp_path / 'a', **SMALL, seed=5, workers=1)
    write_demo_dataset(tmp_path / 'b', **SMALL, seed=5, workers=4)
    write_demo_dataset(tmp_path / 'c', **SMALL, seed=6)

    assert read_files(tmp_path / 'a') == read_files(tmp_path / 'b')
    assert read_files(tmp_path / 'a') != read_files(tmp_path / 'c')


def test_complete_set_is_reused(tmp_path: Path) -> None:
    pytest.importorskip('cv2')
    first = write_demo_dataset(tmp_path / 'demo', **SMALL)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob('*')}

    second = write_demo_dataset(tmp_path / 'demo', **SMALL)

    assert (first.reused, second.reused) == (False, True)
    assert second.image_bytes == first.image_bytes
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob('*')} == times


@pytest.mark.parametrize('damage', ['marker', 'image missing', 'image cut', 'other'])
def test_half_written_set_is_written_anew(tmp_path: Path, damage: str) -> None:
    pytest.importorskip('cv2')
    root = tmp_path / 'demo'
    write_demo_dataset(root, **SMALL)
    whole = read_files(root)
    image = root / 'images' / 'demo_00003.jpg'
    if damage == 'marker':
        (root / 'demo_dataset.json').write_text('{"compl', encoding='utf-8')
    elif damage == 'image missing':
        image.unlink()
    elif damage == 'image cut':
        image.write_bytes(image.read_bytes()[:100])
    else:
        write_demo_dataset(root, images=9, width=80, height=64)

    assert not write_demo_dataset(root, **SMALL).reused
    assert read_files(root) == whole


def test_interrupted_writing_leaves_an_incomplete_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip('cv2')

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(demo_dataset, 'format_coco', interrupt)
        with pytest.raises(KeyboardInterrupt):
            write_demo_dataset(tmp_path / 'demo', **SMALL)

    marker = json.loads((tmp_path / 'demo' / 'demo_dataset.json').read_text())
    assert marker == {'complete': False}
    assert not write_demo_dataset(tmp_path / 'demo', **SMALL).reused


def test_unwritable_folder_is_said_in_one_sentence(tmp_path: Path) -> None:
    pytest.importorskip('cv2')
    (tmp_path / 'file').write_text('in the way', encoding='utf-8')

    with pytest.raises(DemoDatasetError, match=r'cannot write .*name another folder$'):
        write_demo_dataset(tmp_path / 'file' / 'demo', **SMALL)


def test_foreign_folder_is_left_alone(tmp_path: Path) -> None:
    pytest.importorskip('cv2')
    (tmp_path / 'annotations.json').write_text('mine', encoding='utf-8')

    with pytest.raises(DemoDatasetError, match='not of a demo data set'):
        write_demo_dataset(tmp_path, **SMALL)

    assert read_files(tmp_path) == {'annotations.json': b'mine'}


def test_full_disk_is_said_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip('cv2')
    usage = namedtuple('usage', 'total used free')(10**9, 10**9 - 1000, 1000)
    monkeypatch.setattr('shutil.disk_usage', lambda _: usage)

    with pytest.raises(DemoDatasetError, match=r'no room .* about 230 MB; free some'):
        write_demo_dataset(tmp_path / 'demo', images=80, width=6000, height=4000)


@pytest.mark.parametrize('key', ['images', 'width', 'height'])
def test_sizes_are_checked(tmp_path: Path, key: str) -> None:
    with pytest.raises(ValueError, match='expected at least 1 image'):
        write_demo_dataset(tmp_path / 'demo', **{**SMALL, key: 0})

    assert not (tmp_path / 'demo').exists()
