"""The largest padded image that a training config makes. Pure: reads the config."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from mmgpu_hooks.config.loading import bare_name

Size = tuple[int, int]
"""Height and width in pixels."""
_Transform = Mapping[str, Any]


def locate_padded_size(config: Mapping[str, Any]) -> tuple[Size | None, str]:
    """Follow the train pipeline and the data preprocessor.

    Where images keep their ratio, a landscape image that fills the scale is taken, and
    a portrait one beside it where they are not grouped (``AspectRatioBatchSampler``) or
    cropped first, as DETR does.

    Args:
        config: The loaded config.

    Returns:
        Padded height and width of the largest image, ``None`` when the config does
        not say, and where they come from.
    """
    transforms = list(each_transform(config))
    size = _apply_all(transforms, None)
    sources = [name for name in map(type_name, transforms) if name in _RULES]
    sampler = (config.get('train_dataloader') or {}).get('batch_sampler') or {}
    is_grouped = type_name(sampler).endswith('AspectRatioBatchSampler')
    mixes = _mixes_ratios(transforms, not is_grouped)
    if mixes and size is not None and size[0] != size[1]:
        size, sources = (max(size), max(size)), [*sources, 'portrait beside landscape']
    preprocessor = (config.get('model') or {}).get('data_preprocessor') or {}
    preprocessor = preprocessor or config.get('data_preprocessor') or {}
    for augment in preprocessor.get('batch_augments') or ():
        name = type_name(augment)
        if name == 'BatchSyncRandomResize':
            side = max(augment['random_size_range'])
            size, sources = (side, side), [*sources, name]
        elif name == 'BatchFixedSizePad':
            size, sources = _larger(size, augment['size']), [*sources, name]
    divisor = int(preprocessor.get('pad_size_divisor') or 1)
    if size is None:
        return None, 'no known transform of the train pipeline fixes the size'
    if divisor > 1:
        sources.append(f'pad_size_divisor={divisor}')
    return _round_up(size, divisor), ', '.join(dict.fromkeys(sources))


def each_transform(config: Mapping[str, Any]) -> Iterator[_Transform]:
    """Transforms of the train data set in their order, those of wrapped sets first."""
    loader = config.get('train_dataloader') or {}
    yield from _of_dataset(loader.get('dataset') or {})


def type_name(part: Mapping[str, Any]) -> str:
    """The class's bare name, however the config spells it."""
    return bare_name(part.get('type'))


def _of_dataset(dataset: Mapping[str, Any]) -> Iterator[_Transform]:
    for inner in (dataset.get('dataset'), *(dataset.get('datasets') or ())[:1]):
        if isinstance(inner, Mapping):
            yield from _of_dataset(inner)
    for transform in dataset.get('pipeline') or ():
        if isinstance(transform, Mapping):
            yield transform


def _mixes_ratios(transforms: Iterable[_Transform], mixes: bool) -> bool:
    """True if a batch may hold portrait and landscape images."""
    for transform in transforms:
        name = type_name(transform)
        if name in ('RandomChoice', 'RandomApply'):
            mixes = any(_mixes_ratios(one, mixes) for one in _branches(transform))
        elif name == 'RandomCrop':
            kind = transform.get('crop_type', 'absolute')
            mixes = kind.endswith('_range') or (mixes and kind == 'relative')
        elif name in ('MinIoURandomCrop', 'FixShapeResize'):
            mixes = name == 'MinIoURandomCrop'
        elif name in ('Resize', 'FixScaleResize', 'RandomResize') or 'Mosaic' in name:
            mixes = mixes and bool(transform.get('keep_ratio'))
    return mixes


def _branches(transform: _Transform) -> Iterator[Sequence[_Transform]]:
    """What may be done: one of several pipelines; or nothing, or all."""
    inner = transform.get('transforms') or ()
    if type_name(transform) == 'RandomApply':
        inner = [(), inner]
    for branch in inner:
        yield branch if isinstance(branch, Sequence) else [branch]


def _apply_all(transforms: Iterable[_Transform], size: Size | None) -> Size | None:
    for transform in transforms:
        name = type_name(transform)
        if rule := _RULES.get(name):
            size = rule(transform, size)
        elif _RESIZES.search(name):
            size = None
    return size


def _choose(transform: _Transform, size: Size | None) -> Size | None:
    ends = [_apply_all(branch, size) for branch in _branches(transform)]
    known = [end for end in ends if end]
    return max(known, key=math.prod) if known and known == ends else None


def _join(transform: _Transform, size: Size | None) -> Size | None:
    height, width = _scale(transform.get('img_scale', (640, 640)))
    return 2 * height, 2 * width


def _transform_affine(transform: _Transform, size: Size | None) -> Size | None:
    """A mosaic of four is cut to one."""
    across, down = transform.get('border', (0, 0))
    return size and (size[0] + 2 * down, size[1] + 2 * across)


def _resize(transform: _Transform, size: Size | None) -> Size | None:
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
        short = max(min(_scale(one)) for one in each)
        return (min(short, limit), limit) if limit else None
    ratio = max(transform.get('ratio_range') or (1.0,))
    sizes = [_scale(one, transform) for one in each]
    height, width = max(sizes, key=math.prod)
    return round(height * ratio), round(width * ratio)


def _crop(transform: _Transform, size: Size | None) -> Size | None:
    kind, crop = transform.get('crop_type', 'absolute'), transform['crop_size']
    if kind == 'relative' and size is not None:
        across, down = crop if isinstance(crop, Sequence) else (crop, crop)
        return round(size[0] * down), round(size[1] * across)
    if not kind.startswith('absolute'):
        return size
    height, width = _scale(crop)
    if kind == 'absolute_range':
        height = width = max(width, height)
    return (min(size[0], height), min(size[1], width)) if size else (height, width)


def _pad(transform: _Transform, size: Size | None) -> Size | None:
    if (target := transform.get('size')) is not None:
        return _larger(size, _scale(target))
    if size is not None and transform.get('pad_to_square'):
        size = max(size), max(size)
    return size and _round_up(size, int(transform.get('size_divisor') or 1))


_RULES: dict[str, Callable[[_Transform, Size | None], Size | None]] = {
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
    'FixShapeResize': lambda fixed, _: (fixed['height'], fixed['width']),
    'RandomCrop': _crop,
    'Pad': _pad,
}
"""The size after a transform that has a say, by its name."""
_RESIZES = re.compile('Resize|Crop|Pad|Mosaic|Scale|Expand')
"""In the name of another transform: the size after it is unknown."""


def _scale(scale: Any, transform: _Transform | None = None) -> Size:
    """Height and width; MMCV writes width first, or two limits in any order."""
    if isinstance(scale, (int, float)):
        return int(scale), int(scale)
    width, height = int(scale[0]), int(scale[1])
    if transform is not None and transform.get('keep_ratio'):
        return min(width, height), max(width, height)
    return height, width


def _larger(size: Size | None, other: Any) -> Size:
    height, width = size or (0, 0)
    return max(height, int(other[0])), max(width, int(other[1]))


def _round_up(size: Size, divisor: int) -> Size:
    height, width = (-(-side // divisor) * divisor for side in size)
    return height, width
