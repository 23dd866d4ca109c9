"""Batches of made-up images with boxes and masks, packed by the config's transforms.

The config's own loading of annotations and its own packing make the samples, so that
they are of the classes which the model expects, whatever the project.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mmgpu_hooks.experiment.padded_size import each_transform, type_name

BOXES = 7
"""Per image, as in COCO, where an image has 7.3 on average."""


class NoSampleError(Exception):
    """The config's transforms make no sample of a made-up image; one sentence."""


class SyntheticBatches:
    """Makes batches for a config.

    Args:
        config: The loaded config; its registry scope must be active.
        build: Builds a transform of its config.

    Raises:
        NoSampleError: If the pipeline has no transform that packs.
    """

    def __init__(
        self, config: Mapping[str, Any], build: Callable[[Any], Callable[[Any], Any]]
    ) -> None:
        transforms = list(each_transform(config))
        load = [t for t in transforms if type_name(t).endswith('LoadAnnotations')]
        pack = [t for t in transforms if type_name(t).startswith('Pack')]
        if not pack:
            raise NoSampleError('the train pipeline has no transform that packs')
        self._steps = [build(part) for part in (*load[:1], pack[-1])]

    def make(self, batch_size: int, height: int, width: int) -> dict[str, list[Any]]:
        """Make a batch as the data loader would hand it over.

        Args:
            batch_size: Images.
            height: In pixels.
            width: In pixels.

        Returns:
            Lists of inputs and of data samples.

        Raises:
            NoSampleError: If the transforms want more than an image with boxes.
        """
        samples = [
            self._make_sample(number, height, width) for number in range(batch_size)
        ]
        return {name: [sample[name] for sample in samples] for name in samples[0]}

    def _make_sample(self, number: int, height: int, width: int) -> dict[str, Any]:
        results = _raw(number, height, width)
        try:
            for step in self._steps:
                results = step(results)
        except Exception as error:
            raise NoSampleError(
                f'its annotations cannot be made up ({type(error).__name__}: {error})'
            ) from error
        return results


def _raw(number: int, height: int, width: int) -> dict[str, Any]:
    """What the data set and the loading of the image would have given."""
    import numpy as np

    pixels = np.random.default_rng(number).integers(0, 256, (height, width, 3))
    return {
        'img': pixels.astype(np.uint8),
        'img_id': number,
        'img_path': '',
        'img_shape': (height, width),
        'ori_shape': (height, width),
        'height': height,
        'width': width,
        'scale_factor': (1.0, 1.0),
        'flip': False,
        'flip_direction': None,
        'instances': [_instance(k, height, width) for k in range(BOXES)],
    }


def _instance(number: int, height: int, width: int) -> dict[str, Any]:
    """A box with its outline as mask: from 8 to 40 % of the image, spread evenly."""
    share = 0.08 * 1.5 ** (number % 5)
    # multiples of the golden ratio and its square, which spread evenly
    middle_x = width * (0.2 + 0.6 * (0.618 * number % 1))
    middle_y = height * (0.2 + 0.6 * (0.382 * number % 1))
    left, right = middle_x - width * share / 2, middle_x + width * share / 2
    top, bottom = middle_y - height * share / 2, middle_y + height * share / 2
    left, right = max(left, 0.0), min(right, float(width))
    top, bottom = max(top, 0.0), min(bottom, float(height))
    return {
        'bbox': [left, top, right, bottom],
        'bbox_label': 0,
        'ignore_flag': 0,
        'mask': [[left, top, right, top, right, bottom, left, bottom]],
    }
