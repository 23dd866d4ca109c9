"""Gives advice beyond the tuned settings, with measured reasons; never applies it."""

from __future__ import annotations

from collections.abc import Iterator

from mmgpu_hooks.judge.batch_sizes import find_batch_sizes
from mmgpu_hooks.judge.host_costs import find_profile_of
from mmgpu_hooks.judge.rules.starting import list_start_findings
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.thresholds import (
    DATA_WAIT_NOTICE,
    GPU_UTIL_LOW_PCT,
    VALIDATION_PART_NOTICE,
    VERDICT_SHARE,
)
from mmgpu_hooks.judge.validation_findings import (
    COCO_METRIC,
    SET_FAST_METRIC,
    SET_IN_LIST,
    find_whole,
)
from mmgpu_hooks.recommend.settings import SETTINGS
from mmgpu_hooks.schema.judged import Finding
from mmgpu_hooks.schema.text import Text, phrase, sentences

_LARGER = 1.5
"""Smallest ratio of stored to trained pixels for which smaller files are advised."""

_CHEAPER = {
    'LoadAnnotations': phrase('poly2mask=False, which keeps masks as polygons'),
    'Mosaic': phrase('CachedMosaic, which keeps images in memory and loads no others'),
    'MixUp': phrase('CachedMixUp, which keeps images in memory and loads no other'),
    'CopyPaste': phrase('a smaller max_num_pasted'),
    'Resize': phrase('images stored at the size they are trained at'),
    'RandomResize': phrase('images stored at the largest size they are trained at'),
    'RandomChoiceResize': phrase(
        'images stored at the largest size they are trained at'
    ),
}
"""Cheaper alternatives to a transform, by the transform's class name.

Another augmentation changes what is trained.
"""


_AMP = 'AmpOptimWrapper'

_LOSSES_PCT = 30
"""Smallest share (%) of a step's busy time in loss functions that limits AMP's gain."""


def advise(run: Run) -> Iterator[Text]:
    """Lists sentences of advice on a run, the most telling first.

    Args:
        run: The run.
    """
    starts = list_start_findings(run)
    yield from (_cite(each) for each in starts if _is_telling(each))
    if not run.figures.is_enough:
        return
    yield from _advise_iterations(run)
    yield from (_cite(each) for each in starts if not _is_telling(each))


def _is_telling(finding: Finding) -> bool:
    return (finding.share or 0.0) >= VERDICT_SHARE


def _cite(finding: Finding) -> Text:
    return phrase('{code}: {detail}', finding)


def _advise_iterations(run: Run) -> Iterator[Text]:
    """Advises on ways to make an iteration faster."""
    record, threads, step_pct = run.meta, run.threads, _find_step_pct(run)
    yield from _advise_metric(run)
    if run.unbinding is not None:
        yield sentences(
            phrase(
                'Undo the binding first (MG113): the predictions are for '
                '{usable_cores:g} usable cores.',
                record.host,
            ),
            run.unbinding,
        )
    if threads is not None and threads.is_thrash and (threads.opencv or 0) < 2:
        yield phrase(
            'The {threads} of a worker are not those of OpenCV (MG115): '
            'OMP_NUM_THREADS=1, and MKL_NUM_THREADS=1, in the environment of the '
            'training leave each worker one.',
            threads,
        )
    if run.is_starved:
        yield from _advise_loading(run)
    for setting in SETTINGS:
        if said := setting.advise(run):
            yield said
    if any(run.is_worth_sparing(cost) for cost in run.host_costs.values()):
        yield from _advise_other_bits(run)
    if record.device != 'cuda':
        return
    if step_pct is not None:
        yield from _advise_amp(run, step_pct)
    yield from _advise_cudnn(run, step_pct)


_COMPILE = phrase(
    "compile=True (the model's operators become few, after minutes of compiling, again "
    'for each new size of batch)'
)
_FUSED = phrase('fused=True in optim_wrapper.optimizer (one kernel steps many tensors)')


def _advise_other_bits(run: Run) -> Iterator[Text]:
    """Advises a fused optimizer or torch.compile, whose results differ by rounding."""
    counted, ways = run.meta.overhead, list[Text]()
    if counted is not None and not counted.is_fused:
        ways.append(_FUSED)
    if counted is not None and not counted.is_compiled:
        ways.append(_COMPILE)
    if ways:
        yield phrase(
            'Also against a step that waits for the host: {ways:&}. Other than '
            'optimize they round in another way, so the weights differ.',
            ways=tuple(ways),
        )


def _advise_amp(run: Run, step_pct: float) -> Iterator[Text]:
    """Advises mixed precision, or says why it would gain little."""
    record, why = run.meta, _find_why_amp_brings_little(run)
    if record.optim_wrapper == _AMP and why is not None:
        yield phrase('AMP is on and brings little: {why}.', why=why)
    if record.optim_wrapper in (None, _AMP):
        return
    if why is None and record.overhead is not None and record.overhead.uses_tf32:
        why = phrase('convolutions compute in TF32 already')
    expect = why and phrase('Expect little of it here: {why}.', why=why)
    yield sentences(
        phrase(
            'The step takes {step_pct} of an iteration, in full precision '
            "({optim_wrapper}): optim_wrapper.type='{amp}' is often faster and takes "
            'less memory; check the accuracy.',
            step_pct=step_pct,
            optim_wrapper=record.optim_wrapper,
            amp=_AMP,
        ),
        expect,
    )


def _find_why_amp_brings_little(run: Run) -> Text | None:
    """Finds why mixed precision would gain little, as a clause."""
    profile, gpu = find_profile_of(run), run.figures.gpu
    if profile is not None and profile.bound == 'launches':
        return phrase(
            'the card waits for the host for {idle_pct} of a step',
            idle_pct=100 * (profile.uncovered_s or 0.0) / profile.plain_step_s,
        )
    losses_pct = None if profile is None else profile.losses_pct
    if losses_pct is not None and losses_pct >= _LOSSES_PCT:
        return phrase(
            '{losses_pct} of the busy time is in the losses, which stay in float32',
            losses_pct=losses_pct,
        )
    util_pct = None if gpu is None else gpu.util_pct
    if profile is None and util_pct is not None and util_pct < GPU_UTIL_LOW_PCT:
        return phrase(
            'the GPU is busy for {util_pct} of the time alone', util_pct=util_pct
        )
    return None


def _advise_metric(run: Run) -> Iterator[Text]:
    """Advises FastCocoMetric if CocoMetric takes much of a validation (MG501)."""
    whole = find_whole(run)
    if whole is None or whole.fast_metric_s is None:
        return
    own_s = whole.costs.metrics_s.get(COCO_METRIC, 0.0)
    own_share = own_s / whole.costs.wall_s
    if whole.share * own_share < VALIDATION_PART_NOTICE:
        return
    facts = {
        'metric_pct': 100 * own_share,
        'saved_s': whole.fast_metric_s * whole.count,
    }
    if whole.fast_metric == 'list':
        yield phrase(
            'CocoMetric takes {metric_pct:exact} of a validation (MG501): '
            'FastCocoMetric would save {saved_s:long} of a whole run. pip install '
            'ultrafast-pycocotools; val_evaluator is a list, so write {argument} into '
            'its CocoMetric by hand.',
            argument=SET_IN_LIST,
            **facts,
        )
    else:
        yield phrase(
            'CocoMetric takes {metric_pct:exact} of a validation (MG501): '
            'FastCocoMetric would save {saved_s:long} of a whole run. pip install '
            'ultrafast-pycocotools, then {command}.',
            command=SET_FAST_METRIC,
            **facts,
        )


def _find_step_pct(run: Run) -> float | None:
    """Returns the train step's share of a steady iteration's time, in per cent.

    ``None`` if the iteration waits for data.
    """
    parts = run.figures.per_iteration
    if parts is None or not parts.total_s:
        return None
    is_waiting = parts.data_wait_share >= DATA_WAIT_NOTICE
    return None if is_waiting else 100 * parts.step_s / parts.total_s


def _advise_cudnn(run: Run, step_pct: float | None) -> Iterator[Text]:
    """Advises on ``cudnn_benchmark`` if the sizes of batches are known."""
    figures = run.figures
    is_on, sizes = run.meta.cudnn_benchmark, find_batch_sizes(run)
    if is_on is None or sizes is None:
        return
    if not is_on and sizes.is_fixed and step_pct is not None:
        yield phrase(
            'The step takes {step_pct} of an iteration, and all batches of '
            '{iterations} have {padded_sizes}: env_cfg.cudnn_benchmark=True lets cuDNN '
            'time its algorithms once for each and keep the fastest; they may take '
            'more memory.',
            step_pct=step_pct,
            iterations=figures.iterations,
            padded_sizes=sizes.count,
        )
    if is_on and sizes.is_varying and sizes.is_all:
        yield phrase(
            'cudnn_benchmark is on, and batches have {padded_sizes} in {iterations}, '
            '{late_sizes:d} of them new in the second half: cuDNN times its algorithms '
            'again for each, and what the largest workspace took stays reserved. '
            'env_cfg.cudnn_benchmark=False does without.',
            padded_sizes=sizes.count,
            iterations=figures.iterations,
            late_sizes=sizes.late,
        )
    elif is_on and sizes.is_varying:
        yield phrase(
            'cudnn_benchmark is on, and batches have at least {padded_sizes:,} padded '
            'sizes in {iterations}: cuDNN times its algorithms again for each, and '
            'what the largest workspace took stays reserved. '
            'env_cfg.cudnn_benchmark=False does without.',
            padded_sizes=sizes.count,
            iterations=figures.iterations,
        )


def _advise_loading(run: Run) -> Iterator[Text]:
    """Advises how to load batches faster: a cheaper transform, or faster storage."""
    loader = run.figures.loader
    if loader is not None and run.transforms:
        costliest = run.transforms[0]
        whole_s = sum(cost.image_s for cost in run.transforms)
        share = costliest.image_s / whole_s
        cheaper = _CHEAPER.get(costliest.name)
        if costliest.name == 'LoadImageFromFile':
            cheaper = _name_cheaper_decoding(run)
        facts = {
            'transform': costliest.name,
            'pipeline_share': share,
            'samples': loader.timed_samples,
        }
        if cheaper:
            yield phrase(
                '{transform} takes {pipeline_share} of the pipeline ({samples} timed); '
                'cheaper: {cheaper}.',
                cheaper=cheaper,
                **facts,
            )
        else:
            yield phrase(
                '{transform} takes {pipeline_share} of the pipeline ({samples} timed).',
                **facts,
            )
    if run.waiting_share and run.workload is not None:
        yield phrase(
            '{waiting_share} of the {loading_s} that a batch takes to load is waiting: '
            'a copy of the data on a local disk, fewer and larger files (LMDB) or a '
            'cache in memory would shorten it.',
            waiting_share=run.waiting_share,
            loading_s=run.workload.batch_time.mean_s,
        )


def _name_cheaper_decoding(run: Run) -> Text | None:
    """Names ways to decode images faster: smaller files, or OpenCV instead of Pillow.

    TurboJPEG is never advised: MMCV raises unless ``mmcv.use_backend`` ran in every
    process, ignores a photo's orientation, and gains little over OpenCV.
    """
    ratio, smaller = run.figures.stored_pixel_ratio, None
    if ratio is None:
        smaller = phrase(
            'images stored at the size they are trained at, where they are larger'
        )
    elif ratio >= _LARGER:
        smaller = phrase(
            'images stored smaller (they have {pixels_ratio:.1f} times the pixels that '
            'are trained at)',
            pixels_ratio=ratio,
        )
    if run.meta.loader.image_decoder != 'pillow':
        return smaller
    decoder = phrase("imdecode_backend='cv2', which decodes JPEGs faster than Pillow")
    if smaller is None:
        return decoder
    return phrase('{first}; then {second}', first=smaller, second=decoder)
