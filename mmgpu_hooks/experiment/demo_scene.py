"""What the images of the demo data set show: planned from a seed, then painted.

This module touches no file. The plan and the annotations need the standard library
alone; painting needs numpy and OpenCV.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Image = NDArray[np.uint8]

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
