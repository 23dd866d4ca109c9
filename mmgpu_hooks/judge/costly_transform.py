"""Names the transform that costs most, and what MMDetection has that costs less."""

from __future__ import annotations

from mmgpu_hooks.judge.run import Run

_DECODERS = {
    'cv2': "imdecode_backend='turbojpeg', which takes a fifth less than cv2",
    'pillow': "imdecode_backend='cv2', which takes a quarter of Pillow's time",
}
"""What decodes large JPEGs faster, by what decodes them now."""

_LARGER = 1.5
"""Times the pixels trained at, from which smaller files are worth their making."""

_CHEAPER = {
    'LoadAnnotations': 'poly2mask=False, which keeps masks as polygons',
    'Mosaic': 'CachedMosaic, which keeps images in memory and loads no others',
    'MixUp': 'CachedMixUp, which keeps images in memory and loads no other',
    'CopyPaste': 'a smaller max_num_pasted',
    'Resize': 'images stored at the size they are trained at',
    'RandomResize': 'images stored at the largest size they are trained at',
    'RandomChoiceResize': 'images stored at the largest size they are trained at',
    'RandomAffine': 'RandomCrop and RandomFlip in its place',
    'PhotoMetricDistortion': 'YOLOXHSVRandomAug in its place',
    'AutoAugment': 'fewer or cheaper policies',
    'RandAugment': 'fewer or cheaper policies',
    'Albu': "MMDetection's own transforms in its place",
}
"""By class name; a change of augmentation changes what is trained."""


def name_costliest(run: Run) -> str | None:
    """A sentence with the transform's share and a cheaper way, if one is known.

    Args:
        run: One rank's figures.

    Returns:
        ``None`` when no transform was timed.
    """
    transforms = run.loader.transforms if run.loader else ()
    whole_s = sum(one.total_s for one in transforms)
    if not transforms or whole_s <= 0.0 or run.loader is None:
        return None
    first = max(transforms, key=lambda one: one.total_s)
    cheaper = _CHEAPER.get(first.name)
    if first.name == 'LoadImageFromFile':
        cheaper = _name_cheaper_decoding(run)
    hint = f'; cheaper: {cheaper}' if cheaper else ''
    return (
        f'{first.name} takes {100 * first.total_s / whole_s:.0f} % of the pipeline '
        f'({run.loader.timed_samples} samples timed){hint}.'
    )


def _name_cheaper_decoding(run: Run) -> str | None:
    """Smaller files first, where they would be smaller; then a faster decoder."""
    ways = []
    ratio = run.stored_pixel_ratio
    if ratio is None:
        ways.append('images stored at the size they are trained at')
    elif ratio >= _LARGER:
        ways.append(
            f'images stored smaller (they have {ratio:.1f} times the pixels that are '
            'trained at)'
        )
    faster = _DECODERS.get(run.run.loader.image_decoder or '')
    return '; then '.join([*ways, *([faster] if faster else [])]) or None
