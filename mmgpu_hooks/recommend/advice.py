"""What else would help, with the evidence for it: said, never applied."""

from __future__ import annotations

from collections.abc import Iterator

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.thresholds import DATA_WAIT_NOTICE
from mmgpu_hooks.schema.figures import format_seconds, plural

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
}
"""By class name; a change of augmentation changes what is trained."""


def _name_costliest(run: Run) -> str | None:
    """The transform's share, and a cheaper way; ``None`` when none was timed."""
    transforms = run.loader.transforms if run.loader else ()
    whole_s = sum(one.image_s or 0.0 for one in transforms)
    if whole_s <= 0.0 or run.loader is None:
        return None
    first, share = transforms[0], (transforms[0].image_s or 0.0) / whole_s
    cheaper = _CHEAPER.get(first.name)
    if first.name == 'LoadImageFromFile':
        cheaper = _name_cheaper_decoding(run)
    hint = f'; cheaper: {cheaper}' if cheaper else ''
    return (
        f'{first.name} takes {100 * share:.0f} % of the pipeline '
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


_AMP = 'AmpOptimWrapper'


def advise(run: Run) -> tuple[str, ...]:
    """Sentences, the most telling first.

    Args:
        run: The run.
    """
    return tuple(_list_advice(run)) if run.is_enough else ()


def _list_advice(run: Run) -> Iterator[str]:
    record, host = run.run, run.run.host
    if run.unbinding is not None:
        yield (
            f'Undo the binding first (MG113). {run.unbinding} The predictions are '
            f'for {host.usable_cores:g} usable cores; until then the training process '
            f'and its workers share {plural(host.affinity_cpus or 0, "CPU")}.'
        )
    threads = run.threads
    if threads is not None and threads.is_thrash and (threads.opencv or 0) < 2:
        yield (
            f'The {threads.threads} threads of a worker are not those of OpenCV '
            '(MG115): OMP_NUM_THREADS=1, and MKL_NUM_THREADS=1, in the environment of '
            'the training leave each worker one.'
        )
    costliest = _name_costliest(run) if run.is_starved else None
    if costliest:
        yield costliest
    if run.is_starved and run.waiting_share and run.workload is not None:
        loading = format_seconds(run.workload.batch_time.mean_s)
        yield (
            f'{100 * run.waiting_share:.0f} % of the {loading} that a batch '
            'takes to load is waiting: a copy of the data on a local disk, fewer and '
            'larger files (LMDB) or a cache in memory would shorten it.'
        )
    if run.confined_cpus is not None:
        yield (
            f'Workers may run on {run.confined_cpus} of {host.affinity_cpus} CPUs: an '
            'OpenMP library bound them. OMP_PROC_BIND=false in the environment, or '
            'OMP_NUM_THREADS=1 and env_cfg.mp_cfg.opencv_num_threads=0, keep it from '
            'doing so.'
        )
    if record.device != 'cuda':
        return
    if run.is_data_bound and not record.loader.pin_memory:
        yield (
            'pin_memory=True of the loader makes copies to the GPU faster, with '
            'model.data_preprocessor.non_blocking=True; what it would save was not '
            'measured.'
        )
    share = run.data_wait_share
    if share is None or share >= DATA_WAIT_NOTICE:
        return
    step = f'{100 * (run.step_s or 0.0) / (run.iter_s or 1.0):.0f} % of an iteration'
    if record.optim_wrapper not in (None, _AMP):
        yield (
            f'The step takes {step}, in full precision ({record.optim_wrapper}): '
            f"optim_wrapper.type='{_AMP}' is often faster and takes less memory; check "
            'the accuracy.'
        )
    yield (
        f'The step takes {step}: env_cfg.cudnn_benchmark=True can help where all '
        'inputs have one size, and hurts where they vary.'
    )
