"""Finds the padded size of the largest image that a config trains with; no I/O."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mmgpu_hooks.config.loading import bare_name
from mmgpu_hooks.schema.memory import ImageSize
from mmgpu_hooks.schema.text import listed, phrase


class PaddedSize(NamedTuple):
    """Padded size in pixels of the largest training image, and where it comes from."""

    size: ImageSize | None
    """Padded height and width, in pixels; ``None`` if the config does not set them."""
    source: str
    """Names of the transforms that the padded size is from, or why it is unknown."""


_Transform = Mapping[str, Any]


def locate_padded_size(config: Mapping[str, Any]) -> PaddedSize:
    """Finds the padded image size that a config's transforms and preprocessor produce.

    Where images keep their ratio, a landscape image that fills the scale is taken, and
    a portrait one beside it where they are not grouped (``AspectRatioBatchSampler``) or
    cropped first, as DETR does.

    Args:
        config: The loaded config.
    """
    transforms = list(each_transform(config))
    size = _apply_all(transforms, None)
    sources = [name for name in map(type_name, transforms) if name in _RULES]
    sampler = (config.get('train_dataloader') or {}).get('batch_sampler') or {}
    is_grouped = type_name(sampler).endswith('AspectRatioBatchSampler')
    mixes = _mixes_ratios(transforms, not is_grouped)
    if mixes and size is not None and size.height != size.width:
        side = max(size)
        size = ImageSize(side, side)
        sources.append(phrase('portrait beside landscape'))
    preprocessor = (config.get('model') or {}).get('data_preprocessor') or {}
    preprocessor = preprocessor or config.get('data_preprocessor') or {}
    for augment in preprocessor.get('batch_augments') or ():
        name = type_name(augment)
        if name == 'BatchSyncRandomResize':
            side = max(augment['random_size_range'])
            size = ImageSize(side, side)
            sources.append(name)
        elif name == 'BatchFixedSizePad':
            size = _larger(size, augment['size'])
            sources.append(name)
    divisor = int(preprocessor.get('pad_size_divisor') or 1)
    if size is None:
        why = phrase('no known transform of the train pipeline fixes the size')
        return PaddedSize(None, why)
    if divisor > 1:
        sources.append(f'pad_size_divisor={divisor}')
    source = listed(dict.fromkeys(sources))
    return PaddedSize(_round_up(size, divisor), source)


def each_transform(config: Mapping[str, Any]) -> Iterator[_Transform]:
    """Yields the config dicts of the train data set's transforms, in order."""
    loader = config.get('train_dataloader') or {}
    yield from _of_dataset(loader.get('dataset') or {})


def type_name(part: Mapping[str, Any]) -> str:
    """Returns the bare class name in a config dict's ``type``, string or class."""
    return bare_name(part.get('type'))


def _of_dataset(dataset: Mapping[str, Any]) -> Iterator[_Transform]:
    for inner in (dataset.get('dataset'), *(dataset.get('datasets') or ())[:1]):
        if isinstance(inner, Mapping):
            yield from _of_dataset(inner)
    for transform in dataset.get('pipeline') or ():
        if isinstance(transform, Mapping):
            yield transform


def _mixes_ratios(transforms: Iterable[_Transform], mixes: bool) -> bool:
    """True if a batch may mix portrait and landscape images after the transforms."""
    for transform in transforms:
        name = type_name(transform)
        if name in ('RandomChoice', 'RandomApply'):
            branches = _branches(transform)
            mixes = any(_mixes_ratios(branch, mixes) for branch in branches)
        elif name == 'RandomCrop':
            kind = transform.get('crop_type', 'absolute')
            mixes = kind.endswith('_range') or (mixes and kind == 'relative')
        elif name in ('MinIoURandomCrop', 'FixShapeResize'):
            mixes = name == 'MinIoURandomCrop'
        elif name in ('Resize', 'FixScaleResize', 'RandomResize') or 'Mosaic' in name:
            mixes = mixes and bool(transform.get('keep_ratio'))
    return mixes


def _branches(transform: _Transform) -> Iterator[Sequence[_Transform]]:
    """Yields the pipelines among which a transform such as RandomChoice chooses.

    For ``RandomApply`` none or all of it.
    """
    inner = transform.get('transforms') or ()
    if type_name(transform) == 'RandomApply':
        inner = [(), inner]
    for branch in inner:
        yield branch if isinstance(branch, Sequence) else [branch]


def _apply_all(
    transforms: Iterable[_Transform], size: ImageSize | None
) -> ImageSize | None:
    for transform in transforms:
        name = type_name(transform)
        if rule := _RULES.get(name):
            size = rule(transform, size)
        elif _RESIZES.search(name):
            size = None
    return size


def _choose(transform: _Transform, size: ImageSize | None) -> ImageSize | None:
    ends = [_apply_all(branch, size) for branch in _branches(transform)]
    known = [end for end in ends if end]
    if not known or known != ends:
        return None
    return max(known, key=lambda size: size.pixels)


def _join(transform: _Transform, size: ImageSize | None) -> ImageSize | None:
    height, width = _scale(transform.get('img_scale', (640, 640)))
    return ImageSize(2 * height, 2 * width)


def _transform_affine(
    transform: _Transform, size: ImageSize | None
) -> ImageSize | None:
    """Returns the image size after RandomAffine, which crops the mosaic by its border.

    A mosaic of four images, that is.
    """
    across, down = transform.get('border', (0, 0))
    return size and ImageSize(size.height + 2 * down, size.width + 2 * across)


def _resize(transform: _Transform, size: ImageSize | None) -> ImageSize | None:
    # whatever draws a scale leaves the rest to another transform
    kind = type_name({'type': transform.get('resize_type', transform['type'])})
    scale = transform.get('scales') or transform.get('scale')
    if not scale or kind not in _RULES:
        return None
    is_short = 'max_size' in transform or kind == 'ResizeShortestEdge'
    several = isinstance(scale, list) and (is_short or isinstance(scale[0], Sequence))
    each = scale if several else [scale]
    if is_short:
        limit = int(transform.get('max_size') or 0)
        short = max(min(_scale(value)) for value in each)
        return ImageSize(min(short, limit), limit) if limit else None
    ratio = max(transform.get('ratio_range') or (1.0,))
    sizes = [_scale(value, transform) for value in each]
    largest = max(sizes, key=lambda size: size.pixels)
    return ImageSize(round(largest.height * ratio), round(largest.width * ratio))


def _crop(transform: _Transform, size: ImageSize | None) -> ImageSize | None:
    kind, crop = transform.get('crop_type', 'absolute'), transform['crop_size']
    if kind == 'relative' and size is not None:
        across, down = crop if isinstance(crop, Sequence) else (crop, crop)
        return ImageSize(round(size.height * down), round(size.width * across))
    if not kind.startswith('absolute'):
        return size
    height, width = _scale(crop)
    if kind == 'absolute_range':
        height = width = max(width, height)
    if size is None:
        return ImageSize(height, width)
    return ImageSize(min(size.height, height), min(size.width, width))


def _pad(transform: _Transform, size: ImageSize | None) -> ImageSize | None:
    if (target := transform.get('size')) is not None:
        return _larger(size, _scale(target))
    if size is not None and transform.get('pad_to_square'):
        side = max(size)
        size = ImageSize(side, side)
    return size and _round_up(size, int(transform.get('size_divisor') or 1))


_RULES: dict[str, Callable[[_Transform, ImageSize | None], ImageSize | None]] = {
    'RandomChoice': _choose,
    'RandomApply': _choose,
    'Mosaic': _join,
    'CachedMosaic': _join,
    'RandomAffine': _transform_affine,
    'Resize': _resize,
    'FixScaleResize': _resize,
    'RandomResize': _resize,
    'RandomChoiceResize': _resize,
    'ResizeShortestEdge': _resize,
    'FixShapeResize': lambda fixed, _: ImageSize(fixed['height'], fixed['width']),
    'RandomCrop': _crop,
    'Pad': _pad,
}
"""Functions that compute the image size after a transform, by the transform's name."""
_RESIZES = re.compile('Resize|Crop|Pad|Mosaic|Scale|Expand')
"""Regex for names of transforms after which the image size is unknown."""


def _scale(scale: Any, transform: _Transform | None = None) -> ImageSize:
    """Converts an MMCV scale (width, height) to an image size of height and width.

    MMCV writes width first, or two limits in any order.
    """
    if isinstance(scale, (int, float)):
        return ImageSize(int(scale), int(scale))
    width, height = int(scale[0]), int(scale[1])
    if transform is not None and transform.get('keep_ratio'):
        return ImageSize(min(width, height), max(width, height))
    return ImageSize(height, width)


def _larger(size: ImageSize | None, other: Any) -> ImageSize:
    height, width = size or (0, 0)
    return ImageSize(max(height, int(other[0])), max(width, int(other[1])))


def _round_up(size: ImageSize, divisor: int) -> ImageSize:
    height, width = (-(-side // divisor) * divisor for side in size)
    return ImageSize(height, width)
