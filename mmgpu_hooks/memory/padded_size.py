"""The largest padded image that a training config makes. Pure: reads the config."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

Size = tuple[int, int]
"""Height and width in pixels."""


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
    size: Size | None = None
    sources: list[str] = []
    for transform in each_transform(config):
        size, source = _apply(transform, size)
        if source:
            sources.append(source)
    sampler = (config.get('train_dataloader') or {}).get('batch_sampler') or {}
    is_grouped = type_name(sampler).endswith('AspectRatioBatchSampler')
    mixes = _mixes_ratios(each_transform(config), not is_grouped)
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
            size, sources = _larger(size, tuple(augment['size'])), [*sources, name]
    divisor = int(preprocessor.get('pad_size_divisor') or 1)
    if size is None:
        return None, 'no transform of the train pipeline fixes the size'
    padded = tuple(-(-side // divisor) * divisor for side in size)
    if divisor > 1:
        sources.append(f'pad_size_divisor={divisor}')
    return (padded[0], padded[1]), ', '.join(dict.fromkeys(sources))


def each_transform(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Transforms of the train data set in their order, those of wrapped sets first."""
    loader = config.get('train_dataloader') or {}
    yield from _of_dataset(loader.get('dataset') or {})


def type_name(part: Mapping[str, Any]) -> str:
    """The class's bare name, however the config spells it."""
    kind = part.get('type')
    name = kind if isinstance(kind, str) else getattr(kind, '__name__', str(kind))
    return name.rsplit('.', 1)[-1]


def _of_dataset(dataset: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    inner = dataset.get('dataset')
    if isinstance(inner, Mapping):
        yield from _of_dataset(inner)
    several = dataset.get('datasets')
    if isinstance(several, Sequence) and several and isinstance(several[0], Mapping):
        yield from _of_dataset(several[0])
    for transform in dataset.get('pipeline') or ():
        if isinstance(transform, Mapping):
            yield transform


def _mixes_ratios(transforms: Iterable[Mapping[str, Any]], mixes: bool) -> bool:
    """Whether a batch may hold portrait and landscape images."""
    for transform in transforms:
        name = type_name(transform)
        if name in ('RandomChoice', 'RandomApply'):
            ends = [_mixes_ratios(branch, mixes) for branch in _branches(transform)]
            mixes = any(ends) or (mixes and name == 'RandomApply')
        elif name == 'RandomCrop':
            kind = transform.get('crop_type', 'absolute')
            mixes = kind.endswith('_range') or (mixes and kind == 'relative')
        elif name == 'MinIoURandomCrop':
            mixes = True
        elif name in ('Resize', 'RandomResize', 'FixShapeResize') or 'Mosaic' in name:
            mixes = mixes and bool(transform.get('keep_ratio'))
    return mixes


def _branches(transform: Mapping[str, Any]) -> Iterator[Sequence[Mapping[str, Any]]]:
    for branch in transform.get('transforms') or ():
        yield branch if isinstance(branch, Sequence) else [branch]


def _apply(transform: Mapping[str, Any], size: Size | None) -> tuple[Size | None, str]:
    """The size after a transform, and its name when it had a say."""
    name = type_name(transform)
    if name in ('RandomChoice', 'RandomApply'):
        return _apply_choice(transform, size), name
    if name in ('Mosaic', 'CachedMosaic'):
        height, width = _scale(transform.get('img_scale', (640, 640)))
        return (2 * height, 2 * width), name
    if name == 'RandomAffine':
        # a mosaic of four is cut to one
        across, down = transform.get('border', (0, 0))
        if size is None or (across, down) == (0, 0):
            return size, ''
        return (size[0] + 2 * down, size[1] + 2 * across), name
    if name in ('Resize', 'FixShapeResize', 'FixScaleResize'):
        scale = transform.get('scale')
        if scale is None and name == 'FixShapeResize':
            scale = transform['width'], transform['height']
        return (_scale(scale, transform), name) if scale else (size, '')
    if name == 'RandomResize':
        ratio = max(transform.get('ratio_range') or (1.0,))
        scales = _scales(transform)
        return _largest((round(h * ratio), round(w * ratio)) for h, w in scales), name
    if name in ('RandomChoiceResize', 'ResizeShortestEdge'):
        return _apply_choice_of_scales(transform, size), name
    if name == 'RandomCrop':
        return _apply_crop(transform, size), name
    if name == 'Pad':
        return _apply_pad(transform, size), name
    return size, ''


def _apply_choice(transform: Mapping[str, Any], size: Size | None) -> Size | None:
    ends: list[Size | None] = [size] if type_name(transform) == 'RandomApply' else []
    for branch in _branches(transform):
        end = size
        for part in branch:
            end, _ = _apply(part, end)
        ends.append(end)
    return _largest(end for end in ends if end is not None)


def _apply_choice_of_scales(
    transform: Mapping[str, Any], size: Size | None
) -> Size | None:
    scales = transform.get('scales') or transform.get('scale')
    if not scales:
        return size
    if isinstance(scales, int) or isinstance(scales[0], int):
        # lengths of the short side, with a limit on the long one
        shorts = [scales] if isinstance(scales, int) else scales
        limit = (transform.get('resize_cfg') or transform).get('max_size')
        return (max(shorts), int(limit)) if limit else size
    return _largest(_scale(scale, {'keep_ratio': True}) for scale in scales)


def _apply_crop(transform: Mapping[str, Any], size: Size | None) -> Size | None:
    crop = transform['crop_size']
    kind = transform.get('crop_type', 'absolute')
    width, height = (crop, crop) if isinstance(crop, (int, float)) else crop
    if kind == 'absolute_range':
        height = width = max(width, height)
    if kind.startswith('absolute'):
        crop_size = int(height), int(width)
        if size is None:
            return crop_size
        return min(size[0], crop_size[0]), min(size[1], crop_size[1])
    if kind == 'relative' and size is not None:
        return round(size[0] * height), round(size[1] * width)
    return size


def _apply_pad(transform: Mapping[str, Any], size: Size | None) -> Size | None:
    target = transform.get('size')
    if target is not None:
        return _larger(size, _scale(target))
    if size is None:
        return None
    if transform.get('pad_to_square'):
        size = max(size), max(size)
    divisor = int(transform.get('size_divisor') or 1)
    return -(-size[0] // divisor) * divisor, -(-size[1] // divisor) * divisor


def _scale(scale: Any, transform: Mapping[str, Any] | None = None) -> Size:
    """Height and width; MMCV writes width first, or two limits in any order."""
    if isinstance(scale, (int, float)):
        return int(scale), int(scale)
    width, height = int(scale[0]), int(scale[1])
    if transform is not None and transform.get('keep_ratio'):
        return min(width, height), max(width, height)
    return height, width


def _scales(transform: Mapping[str, Any]) -> list[Size]:
    scale = transform['scale']
    several = isinstance(scale, Sequence) and isinstance(scale[0], Sequence)
    return [_scale(one, transform) for one in (scale if several else [scale])]


def _largest(sizes: Iterator[Size]) -> Size | None:
    return max(sizes, key=lambda size: size[0] * size[1], default=None)


def _larger(size: Size | None, other: Any) -> Size:
    height, width = int(other[0]), int(other[1])
    if size is None:
        return height, width
    return max(size[0], height), max(size[1], width)
