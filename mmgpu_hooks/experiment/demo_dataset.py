"""A small detection data set of real, camera-sized JPEG files for the demo.

The demo needs images whose decoding is real work, and nothing to download: they are
planned from a seed, then painted. A complete set is reused.
"""

from __future__ import annotations

import errno
import json
import math
import os
import random
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmgpu_hooks.measure.proc import read_affinity

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Image = NDArray[np.uint8]

IMAGE_FOLDER = 'images'
ANNOTATION_FILE = 'annotations.json'
MARKER_FILE = 'demo_dataset.json'

JPEG_QUALITY = 85
# Measured on the painted images, rounded up: for the check of free room.
BYTES_PER_PIXEL = 0.12


CATEGORIES = ('rectangle', 'ellipse')
TEXTURES = 3


@dataclass(frozen=True)
class DemoSpec:
    """What determines the data set; two equal specs give the same files."""

    images: int
    """Number of images."""
    width: int
    """Width of every image in pixels."""
    height: int
    """Height of every image in pixels."""
    seed: int
    """Seed of the textures, the objects and their places."""


# For `configs/demo`: on a CPU, decoding a batch then takes about as long as its step,
# so that one worker beside the training nearly halves the iteration.
DEMO_SPEC = DemoSpec(images=240, width=4000, height=3000, seed=0)


@dataclass(frozen=True)
class DemoObject:
    """One object of an image: its shape and the box that it fills, in pixels."""

    category: str
    left: int
    top: int
    width: int
    height: int
    colour: tuple[int, int, int]

    @property
    def area(self) -> float:
        """Area of the shape in square pixels."""
        share = math.pi / 4 if self.category == 'ellipse' else 1.0
        return share * self.width * self.height


@dataclass(frozen=True)
class ImagePlan:
    """What one image shows."""

    file_name: str
    texture: int
    """Index of the background texture."""
    shift: tuple[int, int]
    """Down and right shift of the background in pixels; it wraps around."""
    flip: bool
    """Whether the background is mirrored left to right."""
    tint: tuple[float, float, float]
    """Gain of the background's blue, green and red."""
    objects: tuple[DemoObject, ...]


def plan_image(spec: DemoSpec, index: int) -> ImagePlan:
    """Plan the image of that index; depends on the spec and the index alone."""
    rng = random.Random(f'{spec.seed}/{index}')
    return ImagePlan(
        file_name=f'demo_{index:05d}.jpg',
        texture=rng.randrange(TEXTURES),
        shift=(rng.randrange(spec.height), rng.randrange(spec.width)),
        flip=rng.random() < 0.5,
        tint=(rng.uniform(0.7, 1.1), rng.uniform(0.7, 1.1), rng.uniform(0.7, 1.1)),
        objects=tuple(_plan_object(spec, rng) for _ in range(rng.randint(3, 8))),
    )


def _plan_object(spec: DemoSpec, rng: random.Random) -> DemoObject:
    # Odd sides: an ellipse around a pixel then fills its box exactly.
    width = 2 * max(2, int(spec.width * rng.uniform(0.04, 0.12))) + 1
    height = 2 * max(2, int(spec.height * rng.uniform(0.04, 0.12))) + 1
    return DemoObject(
        category=rng.choice(CATEGORIES),
        left=rng.randint(0, spec.width - width),
        top=rng.randint(0, spec.height - height),
        width=width,
        height=height,
        colour=(rng.randrange(256), rng.randrange(256), rng.randrange(256)),
    )


def format_coco(spec: DemoSpec, plans: Sequence[ImagePlan]) -> dict[str, Any]:
    """Return the annotations of the planned images in COCO's format."""
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for image_id, plan in enumerate(plans, start=1):
        size = {'width': spec.width, 'height': spec.height}
        images.append({'id': image_id, 'file_name': plan.file_name, **size})
        for shape in plan.objects:
            annotations.append(
                {
                    'id': len(annotations) + 1,
                    'image_id': image_id,
                    'category_id': CATEGORIES.index(shape.category) + 1,
                    'bbox': [shape.left, shape.top, shape.width, shape.height],
                    'area': shape.area,
                    'iscrowd': 0,
                }
            )
    categories = [{'id': i, 'name': name} for i, name in enumerate(CATEGORIES, start=1)]
    return {'images': images, 'annotations': annotations, 'categories': categories}


def paint_texture(spec: DemoSpec, index: int) -> Image:
    """Paint a background with detail at several scales, as in a photograph.

    Returns:
        Pixels of shape (height, width, 3), blue first.
    """
    import cv2
    import numpy as np

    rng = np.random.default_rng([spec.seed, index])
    size = (spec.height, spec.width)
    grain = 2.5 * rng.standard_normal(size, np.float32)
    pixels = np.empty((*size, 3), np.uint8)
    for channel in range(3):  # one at a time: a camera's image in floats is large
        level = grain + 120
        for cells, contrast in ((6, 45), (40, 25), (250, 10)):
            noise = rng.standard_normal((cells * 3 // 4, cells), np.float32)
            level += contrast * cv2.resize(noise, size[::-1])
        pixels[..., channel] = np.clip(level, 0, 255)
    return pixels


def paint_image(plan: ImagePlan, textures: Sequence[Image]) -> Image:
    """Paint one planned image over its texture.

    Returns:
        Pixels of the texture's shape, blue first.
    """
    import cv2
    import numpy as np

    pixels = np.roll(textures[plan.texture], plan.shift, axis=(0, 1))
    if plan.flip:
        pixels = np.ascontiguousarray(pixels[:, ::-1])
    levels = np.arange(256, dtype=np.float32)[None, :, None]
    gains = np.asarray(plan.tint, np.float32)
    table = np.clip(levels * gains, 0, 255).astype(np.uint8)
    pixels = np.asarray(cv2.LUT(pixels, table), np.uint8)
    for shape in plan.objects:
        half = (shape.width // 2, shape.height // 2)
        if shape.category == 'ellipse':
            centre = (shape.left + half[0], shape.top + half[1])
            cv2.ellipse(pixels, centre, half, 0, 0, 360, shape.colour, cv2.FILLED)
        else:
            corner = (shape.left + 2 * half[0], shape.top + 2 * half[1])
            cv2.rectangle(
                pixels, (shape.left, shape.top), corner, shape.colour, cv2.FILLED
            )
    return pixels


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
