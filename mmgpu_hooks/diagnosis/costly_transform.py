"""Names the transform that costs most, and what MMDetection has that costs less."""

from __future__ import annotations

from mmgpu_hooks.judge.run import Run

_CHEAPER = {
    'LoadImageFromFile': "images stored smaller, or imdecode_backend='turbojpeg'",
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


def name_costliest(summary: Run) -> str | None:
    """A sentence with the transform's share and a cheaper way, if one is known.

    Args:
        summary: One rank's figures.

    Returns:
        ``None`` when no transform was timed.
    """
    transforms = summary.loader.transforms if summary.loader else ()
    whole_s = sum(one.total_s for one in transforms)
    if not transforms or whole_s <= 0.0 or summary.loader is None:
        return None
    first = max(transforms, key=lambda one: one.total_s)
    cheaper = _CHEAPER.get(first.name)
    hint = f'; cheaper: {cheaper}' if cheaper else ''
    return (
        f'{first.name} takes {100 * first.total_s / whole_s:.0f} % of the pipeline '
        f'({summary.loader.timed_samples} samples timed){hint}.'
    )
