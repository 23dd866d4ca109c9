"""Advice on what else would help, with the evidence for it: said, never applied."""

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
    SET_FAST_METRIC,
    find_whole,
    phrase_whole,
)
from mmgpu_hooks.recommend.settings import SETTINGS
from mmgpu_hooks.schema.figures import format_pct, format_seconds, plural
from mmgpu_hooks.schema.judged import Finding

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
}
"""Cheaper ways by class name; another augmentation changes what is trained."""


_AMP = 'AmpOptimWrapper'

_LOSSES_PCT = 30
"""Share of the busy time in losses, from which that is what AMP does not shorten."""


def advise(run: Run) -> Iterator[str]:
    """Sentences, the most telling first.

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


def _cite(finding: Finding) -> str:
    return f'{finding.detail.rstrip(".")} ({finding.code}).'


def _advise_iterations(run: Run) -> Iterator[str]:
    """What would make iterations shorter."""
    record, threads, step_pct = run.meta, run.threads, _find_step_pct(run)
    yield from _advise_metric(run)
    if run.unbinding is not None:
        yield (
            f'Undo the binding first (MG113): the predictions are for '
            f'{record.host.usable_cores:g} usable cores. {run.unbinding}'
        )
    if threads is not None and threads.is_thrash and (threads.opencv or 0) < 2:
        yield (
            f'The {threads.threads} threads of a worker are not those of OpenCV '
            '(MG115): OMP_NUM_THREADS=1, and MKL_NUM_THREADS=1, in the environment of '
            'the training leave each worker one.'
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


def _advise_other_bits(run: Run) -> Iterator[str]:
    """What the field answers first to a host-bound step, and what that changes."""
    counted = run.meta.overhead
    ways = {
        'fused=True in optim_wrapper.optimizer (one kernel steps many tensors)': (
            counted is None or counted.is_fused
        ),
        "compile=True (the model's operators become few, after minutes of compiling, "
        'again for each new size of batch)': counted is None or counted.is_compiled,
    }
    left = [way for way, is_on in ways.items() if not is_on]
    if left:
        yield (
            f'Also against a step that waits for the host: {" and ".join(left)}. Other '
            'than optimize they round in another way, so the weights differ.'
        )


def _advise_amp(run: Run, step_pct: float) -> Iterator[str]:
    """Mixed precision, and why it brings little where that shows."""
    record, why = run.meta, _find_why_amp_brings_little(run)
    if record.optim_wrapper == _AMP and why is not None:
        yield f'AMP is on and brings little: {why}.'
    if record.optim_wrapper in (None, _AMP):
        return
    if why is None and record.overhead is not None and record.overhead.uses_tf32:
        why = 'convolutions compute in TF32 already'
    expect = '' if why is None else f' Expect little of it here: {why}.'
    yield (
        f'The step takes {step_pct:.0f} % of an iteration, in full precision '
        f"({record.optim_wrapper}): optim_wrapper.type='{_AMP}' is often faster "
        f'and takes less memory; check the accuracy.{expect}'
    )


def _find_why_amp_brings_little(run: Run) -> str | None:
    """A clause; ``None`` where nothing says so."""
    profile, gpu = find_profile_of(run), run.figures.gpu
    if profile is not None and profile.bound == 'launches':
        idle_pct = 100 * (profile.uncovered_s or 0.0) / profile.plain_step_s
        return f'the card waits for the host for {idle_pct:.0f} % of a step'
    losses_pct = None if profile is None else profile.losses_pct
    if losses_pct is not None and losses_pct >= _LOSSES_PCT:
        share = f'{losses_pct:.0f} % of the busy time'
        return f'{share} is in the losses, which stay in float32'
    util_pct = None if gpu is None else gpu.util_pct
    if profile is None and util_pct is not None and util_pct < GPU_UTIL_LOW_PCT:
        return f'the GPU is busy for {util_pct:.0f} % of the time alone'
    return None


def _advise_metric(run: Run) -> Iterator[str]:
    """The fast metric, where CocoMetric's own is worth a word (MG501)."""
    whole = find_whole(run)
    if whole is None or whole.fast_metric_s is None:
        return
    if whole.run_share('metric') >= VALIDATION_PART_NOTICE:
        saved = phrase_whole(whole.fast_metric_s * whole.count)
        yield (
            f'CocoMetric takes {format_pct(100 * whole.costs.share("metric"))} of a '
            f'validation (MG501): FastCocoMetric would save {saved} of a whole run. '
            f'pip install ultrafast-pycocotools, then {SET_FAST_METRIC}.'
        )


def _find_step_pct(run: Run) -> float | None:
    """Per cent of an iteration that the step takes; ``None`` where the loop waits."""
    parts = run.figures.per_iteration
    if parts is None or not parts.total_s:
        return None
    is_waiting = parts.data_wait_share >= DATA_WAIT_NOTICE
    return None if is_waiting else 100 * parts.step_s / parts.total_s


def _advise_cudnn(run: Run, step_pct: float | None) -> Iterator[str]:
    """``cudnn_benchmark``, where the sizes of batches are known."""
    figures = run.figures
    is_on, sizes = run.meta.cudnn_benchmark, find_batch_sizes(run)
    if is_on is None or sizes is None:
        return
    if not is_on and sizes.is_fixed and step_pct is not None:
        yield (
            f'The step takes {step_pct:.0f} % of an iteration, and all batches of '
            f'{figures.iterations} iterations have '
            f'{plural(sizes.count, "padded size")}: '
            'env_cfg.cudnn_benchmark=True lets cuDNN time its algorithms once for each '
            'and keep the fastest; they may take more memory.'
        )
    if is_on and sizes.is_varying:
        found = (
            f'at least {sizes.count:,} padded sizes in {figures.iterations} iterations'
        )
        if sizes.is_all:
            found = (
                f'{sizes.count} padded sizes in {figures.iterations} iterations, '
                f'{sizes.late} of them new in the second half'
            )
        yield (
            f'cudnn_benchmark is on, and batches have {found}: cuDNN times its '
            'algorithms again for each, and what the largest workspace took stays '
            'reserved. env_cfg.cudnn_benchmark=False does without.'
        )


def _advise_loading(run: Run) -> Iterator[str]:
    """Advice that makes a batch cheaper: the costliest transform, waiting less."""
    loader = run.figures.loader
    if loader is not None and run.transforms:
        costliest = run.transforms[0]
        whole_s = sum(cost.image_s for cost in run.transforms)
        share = costliest.image_s / whole_s
        cheaper = _CHEAPER.get(costliest.name)
        if costliest.name == 'LoadImageFromFile':
            cheaper = _name_cheaper_decoding(run)
        hint = f'; cheaper: {cheaper}' if cheaper else ''
        yield (
            f'{costliest.name} takes {100 * share:.0f} % of the pipeline '
            f'({loader.timed_samples} samples timed){hint}.'
        )
    if run.waiting_share and run.workload is not None:
        loading = format_seconds(run.workload.batch_time.mean_s)
        yield (
            f'{100 * run.waiting_share:.0f} % of the {loading} that a batch '
            'takes to load is waiting: a copy of the data on a local disk, fewer and '
            'larger files (LMDB) or a cache in memory would shorten it.'
        )


def _name_cheaper_decoding(run: Run) -> str:
    """Smaller files first, where they would be smaller; then OpenCV for Pillow.

    TurboJPEG is never advised: MMCV raises unless ``mmcv.use_backend`` ran in every
    process, ignores a photo's orientation, and gains little over OpenCV.
    """
    ratio, ways = run.figures.stored_pixel_ratio, []
    if ratio is None:
        ways.append(
            'images stored at the size they are trained at, where they are larger'
        )
    elif ratio >= _LARGER:
        times = f'{ratio:.1f} times the pixels that are trained at'
        ways.append(f'images stored smaller (they have {times})')
    if run.meta.loader.image_decoder == 'pillow':
        ways.append("imdecode_backend='cv2', which decodes JPEGs faster than Pillow")
    return '; then '.join(ways)
