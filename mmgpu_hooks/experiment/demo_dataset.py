"""A small detection data set of camera-sized JPEG files for the demo, painted.

The demo needs images whose decoding is real work, and nothing to download. What is
painted follows from a seed; a complete set is reused.
"""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmgpu_hooks.measure.proc import read_affinity
from mmgpu_hooks.schema.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Image = NDArray[np.uint8]

CATEGORIES = ('rectangle', 'ellipse')

_MARKER = 'demo_dataset.json'
_TEXTURES = 3
_JPEG_QUALITY = 85
_BYTES_PER_PIXEL = 0.12
"""Measured on the painted images, rounded up: for the check of free space."""


@dataclass(frozen=True)
class DemoSpec:
    """What determines the data set; two equal specs give the same files."""

    images: int
    width: int
    """Of every image in pixels."""
    height: int
    seed: int = 0


# For `configs/demo`: on a CPU, decoding a batch then takes about as long as its step,
# so that one worker beside the training nearly halves the iteration.
DEMO_SPEC = DemoSpec(images=240, width=4000, height=3000)


@dataclass(frozen=True)
class DemoDataset:
    """Where the data set lies."""

    root: Path
    image_bytes: int
    """Size of all image files."""
    reused: bool
    """Whether a complete data set was found and nothing was written."""

    @property
    def annotation_file(self) -> Path:
        """Annotations in COCO's format."""
        return self.root / 'annotations.json'

    @property
    def image_folder(self) -> Path:
        """Of the JPEG files."""
        return self.root / 'images'


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
        UserError: A size is too small, the folder holds something else, cannot be
            written or lacks space, or OpenCV is not installed.
    """
    if images < 1 or width < 64 or height < 64:
        raise UserError(
            'expected at least 1 image of at least 64 x 64 pixels, '
            f'found {images} of {width} x {height}'
        )
    spec = DemoSpec(images, width, height, seed)
    try:
        found = _read_complete(root, spec)
        written = _write(root, spec, workers) if found is None else found
    except ImportError as error:
        raise UserError(
            f'expected OpenCV to paint the demo data set with, found none ({error}): '
            'pip install opencv-python'
        ) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f'expected {_needed_bytes(spec) / 1e6:.0f} MB for the demo data set in '
                f'{root}, found less; free some, or name another folder'
            ) from error
        raise UserError(
            f'expected to write the demo data set in {root}, found {error}; name '
            'another folder'
        ) from error
    return DemoDataset(root, written, found is not None)


def _read_complete(root: Path, spec: DemoSpec) -> int | None:
    """The size of the images when the set is complete."""
    try:
        marker = json.loads((root / _MARKER).read_text(encoding='utf-8'))
        sizes = [path.stat().st_size for path in (root / 'images').iterdir()]
        (root / 'annotations.json').stat()
    except (FileNotFoundError, ValueError):
        return None
    is_complete = len(sizes) == spec.images and marker == _mark(spec, sum(sizes))
    return sum(sizes) if is_complete else None


def _mark(spec: DemoSpec, image_bytes: int) -> dict[str, Any]:
    return {'complete': True, 'image_bytes': image_bytes, **asdict(spec)}


def _write(root: Path, spec: DemoSpec, workers: int | None) -> int:
    """Write the whole set; return the size of the images in bytes."""
    import cv2

    if root.is_dir() and any(root.iterdir()) and not (root / _MARKER).exists():
        raise UserError(
            f'expected an empty folder or a demo data set in {root}, found other '
            'files; name an empty or a new folder'
        )
    folder = root / 'images'
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(root / _MARKER, {'complete': False})
    for stale in folder.iterdir():
        stale.unlink()
    if shutil.disk_usage(root).free < _needed_bytes(spec):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    shapes = [plan_shapes(spec, index) for index in range(spec.images)]

    def write_image(index: int) -> int:
        pixels = paint_image(spec, index, textures[index % _TEXTURES], shapes[index])
        quality = [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY]
        _, encoded = cv2.imencode('.jpg', pixels, quality)
        return (folder / _file_name(index)).write_bytes(encoded.tobytes())

    threads = workers or min(8, len(read_affinity() or ()) or os.cpu_count() or 1)
    with ThreadPoolExecutor(threads) as pool:
        try:
            textures = list(
                pool.map(lambda index: paint_texture(spec, index), range(_TEXTURES))
            )
            image_bytes = sum(pool.map(write_image, range(spec.images)))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    _write_json(root / 'annotations.json', format_coco(spec, shapes))
    _write_json(root / _MARKER, _mark(spec, image_bytes))
    return image_bytes


def _write_json(path: Path, content: dict[str, Any]) -> None:
    draft = path.with_name(f'{path.name}.draft')
    draft.write_text(json.dumps(content), encoding='utf-8')
    draft.replace(path)


def _needed_bytes(spec: DemoSpec) -> int:
    return int(spec.images * spec.width * spec.height * _BYTES_PER_PIXEL)


def _file_name(index: int) -> str:
    return f'demo_{index:05d}.jpg'


@dataclass(frozen=True)
class Shape:
    """One object of an image, and the box that it fills, in pixels."""

    category: str
    left: int
    top: int
    width: int
    height: int
    colour: tuple[int, ...]
    """Blue, green, red."""


def plan_shapes(spec: DemoSpec, index: int) -> list[Shape]:
    """Three to eight objects; they depend on the spec and the index alone."""
    import numpy as np

    rng = np.random.default_rng([spec.seed, _TEXTURES + index])
    shapes = []
    for _ in range(int(rng.integers(3, 9))):
        # odd sides: an ellipse around a pixel then fills its box exactly
        width, height = (
            2 * max(2, int(side * rng.uniform(0.04, 0.12))) + 1
            for side in (spec.width, spec.height)
        )
        shapes.append(
            Shape(
                category=CATEGORIES[rng.integers(2)],
                left=int(rng.integers(spec.width - width + 1)),
                top=int(rng.integers(spec.height - height + 1)),
                width=width,
                height=height,
                colour=tuple(map(int, rng.integers(256, size=3))),
            )
        )
    return shapes


def format_coco(spec: DemoSpec, shapes: Sequence[Sequence[Shape]]) -> dict[str, Any]:
    """The annotations of the images in COCO's format."""
    size = {'width': spec.width, 'height': spec.height}
    annotations = [
        {
            'image_id': index + 1,
            'category_id': CATEGORIES.index(shape.category) + 1,
            'bbox': [shape.left, shape.top, shape.width, shape.height],
            'area': shape.width
            * shape.height
            * (math.pi / 4 if shape.category == 'ellipse' else 1.0),
            'iscrowd': 0,
        }
        for index, of_image in enumerate(shapes)
        for shape in of_image
    ]
    return {
        'images': [
            {'id': index + 1, 'file_name': _file_name(index), **size}
            for index in range(len(shapes))
        ],
        'annotations': [{'id': n, **one} for n, one in enumerate(annotations, 1)],
        'categories': [{'id': n, 'name': name} for n, name in enumerate(CATEGORIES, 1)],
    }


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


def paint_image(
    spec: DemoSpec, index: int, texture: Image, shapes: Sequence[Shape]
) -> Image:
    """Paint objects over a texture that is shifted and tinted for this image.

    Returns:
        Pixels of the texture's shape, blue first.
    """
    import cv2
    import numpy as np

    rng = np.random.default_rng([spec.seed, _TEXTURES + index, 1])
    shift = (int(rng.integers(spec.height)), int(rng.integers(spec.width)))
    levels = np.arange(256, dtype=np.float32)[None, :, None]
    table = np.clip(levels * rng.uniform(0.7, 1.1, 3), 0, 255).astype(np.uint8)
    shifted = np.roll(texture, shift, axis=(0, 1))
    pixels = np.asarray(cv2.LUT(shifted, table), np.uint8)
    for shape in shapes:
        half = (shape.width // 2, shape.height // 2)
        first = (shape.left, shape.top)
        if shape.category == 'ellipse':
            centre = (first[0] + half[0], first[1] + half[1])
            cv2.ellipse(pixels, centre, half, 0, 0, 360, shape.colour, cv2.FILLED)
        else:
            last = (first[0] + 2 * half[0], first[1] + 2 * half[1])
            cv2.rectangle(pixels, first, last, shape.colour, cv2.FILLED)
    return pixels
