"""A small detection data set of real, camera-sized JPEG files for the demo.

The demo needs images whose decoding is real work, and nothing to download. What they
show is in `demo_scene`; here the files are written, and a complete set is reused.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mmgpu_hooks.experiment.demo_scene import (
    TEXTURES,
    DemoSpec,
    ImagePlan,
    format_coco,
    paint_image,
    paint_texture,
    plan_image,
)
from mmgpu_hooks.measure.proc import read_affinity

IMAGE_FOLDER = 'images'
ANNOTATION_FILE = 'annotations.json'
MARKER_FILE = 'demo_dataset.json'

JPEG_QUALITY = 85
# Measured on the painted images, rounded up: for the check of free room.
BYTES_PER_PIXEL = 0.12


class DemoDatasetError(Exception):
    """The data set cannot be written; the message says why and what to do."""


@dataclass(frozen=True)
class DemoDataset:
    """Where the data set lies."""

    root: Path
    annotation_file: Path
    image_folder: Path
    images: int
    """Number of images."""
    image_bytes: int
    """Size of all image files in bytes."""
    reused: bool
    """Whether a complete data set was found and nothing was written."""


def write_demo_dataset(
    root: Path,
    *,
    images: int,
    width: int,
    height: int,
    seed: int = 0,
    workers: int | None = None,
) -> DemoDataset:
    """Write the data set, or reuse the complete one that is there.

    A marker file says incomplete from the start and complete at the end, so that a set
    that was half written is written anew.

    Args:
        root: Folder of the data set; made when absent.
        images: Number of images.
        width: Width of every image in pixels, at least 64.
        height: Height of every image in pixels, at least 64.
        seed: Seed of everything that is drawn.
        workers: Threads that paint and write. Default: the cores this process may use,
            at most 8.

    Raises:
        ValueError: A size is too small.
        DemoDatasetError: The folder holds something else, cannot be written or lacks
            room, or numpy or OpenCV is not installed.
    """
    if images < 1 or width < 64 or height < 64:
        raise ValueError(
            'expected at least 1 image of at least 64 x 64 pixels, '
            f'got {images} of {width} x {height}'
        )
    spec = DemoSpec(images, width, height, seed)
    plans = [plan_image(spec, index) for index in range(images)]
    try:
        image_bytes = _read_complete(root, spec, plans)
        reused = image_bytes is not None
        if image_bytes is None:
            image_bytes = _write(root, spec, plans, workers)
    except OSError as error:
        raise DemoDatasetError(_explain(root, spec, error)) from error
    return DemoDataset(
        root=root,
        annotation_file=root / ANNOTATION_FILE,
        image_folder=root / IMAGE_FOLDER,
        images=images,
        image_bytes=image_bytes,
        reused=reused,
    )


def _read_complete(
    root: Path, spec: DemoSpec, plans: Sequence[ImagePlan]
) -> int | None:
    """Return the size of the images when the set is complete, else None."""
    try:
        marker = json.loads((root / MARKER_FILE).read_text(encoding='utf-8'))
        sizes = [
            (root / IMAGE_FOLDER / plan.file_name).stat().st_size for plan in plans
        ]
        (root / ANNOTATION_FILE).stat()
    except (FileNotFoundError, ValueError):
        return None
    expected = {'complete': True, 'image_bytes': sum(sizes), **asdict(spec)}
    return sum(sizes) if marker == expected else None


def _write(
    root: Path, spec: DemoSpec, plans: Sequence[ImagePlan], workers: int | None
) -> int:
    """Write the whole set; return the size of the images in bytes."""
    try:
        import cv2
    except ImportError as error:
        raise DemoDatasetError(
            f'the demo data set is painted with numpy and OpenCV ({error}): '
            'pip install numpy opencv-python'
        ) from error

    folder = root / IMAGE_FOLDER
    if root.is_dir() and any(root.iterdir()) and not (root / MARKER_FILE).exists():
        raise DemoDatasetError(
            f'{root} holds files that are not of a demo data set: '
            'name an empty or a new folder'
        )
    folder.mkdir(parents=True, exist_ok=True)
    _write_marker(root, {'complete': False})
    for stale in folder.glob('demo_*.jpg'):
        stale.unlink()
    needed = _needed_bytes(spec)
    if shutil.disk_usage(root).free < needed:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def write_image(plan: ImagePlan) -> int:
        quality = [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY]
        _, encoded = cv2.imencode('.jpg', paint_image(plan, textures), quality)
        return (folder / plan.file_name).write_bytes(encoded.tobytes())

    threads = workers or min(8, len(read_affinity() or ()) or os.cpu_count() or 1)
    with ThreadPoolExecutor(threads) as pool:
        try:
            textures = list(pool.map(lambda i: paint_texture(spec, i), range(TEXTURES)))
            image_bytes = sum(pool.map(write_image, plans))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    coco = json.dumps(format_coco(spec, plans))
    (root / ANNOTATION_FILE).write_text(coco, encoding='utf-8')
    _write_marker(root, {'complete': True, 'image_bytes': image_bytes, **asdict(spec)})
    return image_bytes


def _write_marker(root: Path, content: dict[str, Any]) -> None:
    draft = root / f'{MARKER_FILE}.draft'
    draft.write_text(json.dumps(content), encoding='utf-8')
    draft.replace(root / MARKER_FILE)


def _needed_bytes(spec: DemoSpec) -> int:
    return int(spec.images * spec.width * spec.height * BYTES_PER_PIXEL)


def _explain(root: Path, spec: DemoSpec, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f'no room for the demo data set in {root}: it needs about '
            f'{_needed_bytes(spec) / 1e6:.0f} MB; free some, or name another folder'
        )
    return f'cannot write the demo data set in {root} ({error}): name another folder'
