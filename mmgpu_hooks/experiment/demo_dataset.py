"""Paints the demo's small data set for detection: photo-sized JPEG files.

The demo needs images whose decoding is real work, and nothing to download. What is
painted follows from the size and the image's number; a complete set is reused.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.text import phrase

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Image = NDArray[np.uint8]

CATEGORIES = ('rectangle', 'ellipse')

_ANNOTATIONS, _IMAGES = 'annotations.json', 'images'
_TEXTURES = 3
_JPEG_QUALITY = 85

# For `configs/demo`: on a CPU, decoding a batch then takes about as long as its step,
# so that one worker beside the training nearly halves the iteration.
IMAGES = 240
IMAGE_WIDTH, IMAGE_HEIGHT = 4000, 3000


@dataclass(frozen=True)
class DemoDataset:
    """Demo's data set on disk: its folder, and the total bytes of its images."""

    root: Path
    image_bytes: int
    """Total size of the image files, in bytes."""
    is_reused: bool
    """True if the complete data set already existed, so that nothing was written."""

    @property
    def annotation_file(self) -> Path:
        """Path of the data set's annotations in COCO's format."""
        return self.root / _ANNOTATIONS

    @property
    def image_folder(self) -> Path:
        """Path of the folder with the data set's JPEG files."""
        return self.root / _IMAGES


def write_demo_dataset(
    root: Path,
    *,
    images: int = IMAGES,
    width: int = IMAGE_WIDTH,
    height: int = IMAGE_HEIGHT,
) -> DemoDataset:
    """Writes the demo's detection data set, or reuses a complete one.

    The annotations are empty from the start and complete at the end, so that a set
    that was half written is written anew.

    Args:
        root: Folder of the data set; made when absent.
        images: Number of images.
        width: Width of every image in pixels, at least 64.
        height: Height of every image in pixels, at least 64.

    Raises:
        UserError: The folder holds something else.
        OSError: It cannot be written.
    """
    asked = {'images': images, 'width': width, 'height': height}
    found = _read_complete(root, asked)
    written = _write(root, asked) if found is None else found
    return DemoDataset(root, written, is_reused=found is not None)


def _read_complete(root: Path, asked: Mapping[str, int]) -> int | None:
    """Returns the total bytes of a data set's images; ``None`` if it is incomplete."""
    try:
        known = json.loads((root / _ANNOTATIONS).read_text(encoding='utf-8'))['info']
        found = sum(path.stat().st_size for path in (root / _IMAGES).iterdir())
    except (FileNotFoundError, ValueError, KeyError):
        return None
    return found if known == {**asked, 'image_bytes': found} else None


class _WrittenImage(NamedTuple):
    """File size and annotations of a demo image that was written to disk."""

    bytes: int
    """Size of the image file, in bytes."""
    annotations: list[dict[str, Any]]
    """Annotations of the image's objects, in COCO's format."""


def _write(root: Path, asked: Mapping[str, int]) -> int:
    """Writes the whole demo data set; returns the total bytes of its images."""
    import cv2

    annotations, folder = root / _ANNOTATIONS, root / _IMAGES
    if root.is_dir() and any(root.iterdir()) and not annotations.exists():
        raise UserError(
            phrase(
                'expected an empty folder or a demo data set in {root}, found other '
                'files; name an empty or a new folder',
                root=root,
            )
        )
    folder.mkdir(parents=True, exist_ok=True)
    annotations.write_text('')
    for stale in folder.iterdir():
        stale.unlink()
    size, numbers = (asked['width'], asked['height']), range(asked['images'])
    names = [f'demo_{number:05d}.jpg' for number in numbers]

    def write_image(index: int) -> _WrittenImage:
        painted = paint_image(textures[index % _TEXTURES], index)
        quality = [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY]
        _, encoded = cv2.imencode('.jpg', painted.pixels, quality)
        content = encoded.tobytes()
        (folder / names[index]).write_bytes(content)
        return _WrittenImage(len(content), painted.annotations)

    with ThreadPoolExecutor(8) as pool:
        paint = functools.partial(_paint_texture, size)
        textures = list(pool.map(paint, range(_TEXTURES)))
        written = list(pool.map(write_image, numbers))
    whole_bytes = sum(image.bytes for image in written)
    objects = chain(*(image.annotations for image in written))
    sides = {'width': asked['width'], 'height': asked['height']}
    coco = {
        'info': {**asked, 'image_bytes': whole_bytes},
        'images': [
            {'id': number, 'file_name': name, **sides}
            for number, name in enumerate(names, 1)
        ],
        'annotations': [
            {'id': number, **annotation} for number, annotation in enumerate(objects, 1)
        ],
        'categories': [
            {'id': number, 'name': name} for number, name in enumerate(CATEGORIES, 1)
        ],
    }
    annotations.write_text(json.dumps(coco), encoding='utf-8')
    return whole_bytes


def _paint_texture(size: tuple[int, int], index: int) -> Image:
    """Paints an image background with detail at several scales, like a photograph."""
    import cv2
    import numpy as np

    rng = np.random.default_rng([0, index])
    grain = 2.5 * rng.standard_normal(size[::-1], np.float32)
    pixels = np.empty((*size[::-1], 3), np.uint8)
    for channel in range(3):  # one at a time: a camera's image in floats is large
        level = grain + 120
        for cells, contrast in ((6, 45), (40, 25), (250, 10)):
            noise = rng.standard_normal((cells * 3 // 4, cells), np.float32)
            level += contrast * cv2.resize(noise, size)
        pixels[..., channel] = np.clip(level, 0, 255)
    return pixels


class PaintedImage(NamedTuple):
    """Pixels and annotations of a painted demo image."""

    pixels: Image
    annotations: list[dict[str, Any]]
    """Annotations of the image's objects, in COCO's format."""


def paint_image(texture: Image, index: int) -> PaintedImage:
    """Paints three to eight objects on a shifted and tinted background.

    Args:
        texture: Pixels of shape (height, width, 3), blue first.
        index: Of the image; what is painted depends on it and the size alone.

    Returns:
        The image, of the same shape.
    """
    import cv2
    import numpy as np

    rng = np.random.default_rng([1, index])
    height, width = texture.shape[:2]
    shift = int(rng.integers(height)), int(rng.integers(width))
    levels = np.arange(256, dtype=np.float32)[None, :, None]
    table = np.clip(levels * rng.uniform(0.7, 1.1, 3), 0, 255).astype(np.uint8)
    pixels = np.asarray(cv2.LUT(np.roll(texture, shift, axis=(0, 1)), table), np.uint8)
    annotations = []
    for _ in range(int(rng.integers(3, 9))):
        # odd sides: an ellipse around a pixel then fills its box exactly
        half_x, half_y = (
            max(2, int(side * rng.uniform(0.04, 0.12))) for side in (width, height)
        )
        box = 2 * half_x + 1, 2 * half_y + 1
        left, top = (
            int(rng.integers(room - side + 1))
            for room, side in zip((width, height), box)
        )
        colour = tuple(map(int, rng.integers(256, size=3)))
        category = int(rng.integers(2))
        if category:
            centre = left + half_x, top + half_y
            cv2.ellipse(pixels, centre, (half_x, half_y), 0, 0, 360, colour, cv2.FILLED)
        else:
            last = left + 2 * half_x, top + 2 * half_y
            cv2.rectangle(pixels, (left, top), last, colour, cv2.FILLED)
        box_width, box_height = box
        annotations.append(
            {
                'image_id': index + 1,
                'category_id': category + 1,
                'iscrowd': 0,
                'bbox': [left, top, box_width, box_height],
                'area': box_width * box_height * (math.pi / 4 if category else 1.0),
            }
        )
    return PaintedImage(pixels, annotations)
