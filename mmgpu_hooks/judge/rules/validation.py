"""Rules about parts of validations: loader, forward pass, metrics, interval."""

from __future__ import annotations

from mmgpu_hooks.judge import thresholds
from mmgpu_hooks.judge.rules.rule import notice, rule
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.validation_findings import (
    SET_FAST_METRIC,
    SET_IN_LIST,
    WholeValidation,
    find_rarer,
    find_whole,
)
from mmgpu_hooks.schema.judged import Finding
from mmgpu_hooks.schema.text import Text, phrase, quoted, sentences


def _find(run: Run, part: str) -> WholeValidation | None:
    """Returns a run's validation times if the named part takes long, else ``None``."""
    whole = find_whole(run)
    is_worth = whole and whole.run_share(part) >= thresholds.VALIDATION_PART_NOTICE
    return whole if is_worth else None


def _phrase(whole: WholeValidation, part: str) -> Text:
    """Phrases a part's time: ``211.4 s of the 352.1 s of a validation (60 %, ...)``."""
    costs = whole.costs
    spent_s = costs.parts_s[part]
    return phrase(
        '{spent_s:sum} of the {validation_s:sum} of a validation ({part_pct:exact}, '
        '{run_s:long} of a whole run)',
        spent_s=spent_s / costs.count,
        validation_s=costs.wall_s / costs.count,
        part_pct=100 * costs.share(part),
        run_s=3600 * whole.whole_hours(spent_s),
    )


@rule('MG501', 'The metric is the wall of validation')
def judge_metric(run: Run) -> Finding | None:
    """``compute_metrics`` runs on rank 0, on one core, while every card waits.

    For COCO's boxes and masks ``val_evaluator.type='mmgpu_hooks.FastCocoMetric'``
    prints the same figures for a twentieth of the CPU (a tenth for masks). ``mmgpu
    set`` writes the key; it needs ``pip install ultrafast-pycocotools`` wherever it
    evaluates. In a list of evaluators the type is written by hand. It is not offered
    where it evaluates as CocoMetric does: with ``use_mp_eval``, ``outfile_prefix``,
    ``format_only``, without ``ann_file``. For another metric: validate on fewer images,
    or less often (``val_interval``).
    """
    whole = _find(run, 'metric')
    if whole is None:
        return None
    took = phrase(
        'compute_metrics of {metric} took {spent}.',
        metric=tuple(whole.costs.metrics_s) or phrase('the metric'),
        spent=_phrase(whole, 'metric'),
    )
    cure, saved_s = None, whole.fast_metric_s
    if saved_s and whole.fast_metric == 'list':
        cure = phrase(
            'FastCocoMetric would save {saved_s:long} of it: val_evaluator is a list, '
            'so write {argument} into its CocoMetric by hand.',
            saved_s=saved_s * whole.count,
            argument=quoted(SET_IN_LIST),
        )
    elif saved_s:
        cure = phrase(
            'FastCocoMetric would save {saved_s:long} of it: {command}.',
            saved_s=saved_s * whole.count,
            command=quoted(SET_FAST_METRIC),
        )
    return notice(sentences(took, cure), whole.run_share('metric'))


@rule('MG502', 'The evaluator works on each batch for long')
def judge_process(run: Run) -> Finding | None:
    """``process`` of the metrics runs between two batches, on one core.

    Masks are encoded there (run lengths of COCO): 100 masks of 1333 x 800 take a
    quarter of a second, four fifths of it a copy into column order. FastCocoMetric
    takes two fifths of that off on the CPU, and more on a card. Fewer masks an image
    (``max_per_img`` of ``test_cfg``) and smaller ones cost less. On a card the host
    waits for the forward pass in ``process``, too: lower ``val_step`` first then.
    """
    whole = _find(run, 'process')
    if whole is None:
        return None
    took = phrase(
        'process of {metric} took {spent}, {each_s:sum} a batch.',
        metric=tuple(whole.costs.process_s) or phrase('the evaluator'),
        spent=_phrase(whole, 'process'),
        each_s=whole.costs.parts_s['process'] / max(whole.costs.batches, 1),
    )
    waits = None
    if run.meta.device != 'cpu':
        waits = phrase('The wait for the forward pass on the card is in it.')
    return notice(sentences(took, waits), whole.run_share('process'))


@rule('MG503', 'Validation waits for its loader')
def judge_loader(run: Run) -> Finding | None:
    """The loop of a validation waits for ``val_dataloader``.

    ``mmgpu recommend`` sets its workers by what its loops showed. Images that are
    stored at the size that they are tested at load faster; so do more workers, where
    cores are left while the train loader's rest.
    """
    whole = _find(run, 'data_wait')
    if whole is None:
        return None
    workers, spent = run.validations[-1].loader.num_workers, _phrase(whole, 'data_wait')
    took = phrase('Waiting for val_dataloader took {spent}.', spent=spent)
    if workers is not None:
        took = phrase(
            'Waiting for val_dataloader (num_workers={workers:d}) took {spent}.',
            workers=workers,
            spent=spent,
        )
    return notice(took, whole.run_share('data_wait'))


@rule('MG504', "The model's forward pass is what validation does")
def judge_forward(run: Run) -> Finding | None:
    """``val_step`` (forward pass, post-processing, NMS) takes much of a validation.

    A larger ``val_dataloader.batch_size`` uses a card better; ``val_cfg.fp16=True``
    halves the work where the accuracy stays (compare one validation with and without).
    NMS over many candidates shows in ``mmgpu profile``: a higher ``score_thr`` or a
    smaller ``nms_pre`` in ``test_cfg`` cuts it, and may change the figures.
    """
    whole = _find(run, 'forward')
    if whole is None:
        return None
    each_s = whole.costs.parts_s['forward'] / max(whole.costs.batches, 1)
    size = run.validations[-1].loader.batch_size
    facts = {'spent': _phrase(whole, 'forward'), 'each_s': each_s}
    took = phrase('val_step took {spent}, {each_s:sum} a batch.', **facts)
    if size is not None:
        took = phrase(
            'val_step took {spent}, {each_s:sum} a batch of {images}.',
            images=size,
            **facts,
        )
    return notice(took, whole.run_share('forward'))


@rule('MG505', 'Validations are close together')
def judge_interval(run: Run) -> Finding | None:
    """A validation takes over a tenth of the training time since the previous one.

    ``train_cfg.val_interval`` sets how often it runs, ``val_begin`` from when on, and
    ``dynamic_intervals`` changes it while it trains: often at the end, where the best
    checkpoint comes from, seldom before. The finding names the interval at which
    validations are a tenth of the time. ``save_best`` chooses among fewer then.
    """
    whole = find_whole(run)
    if whole is None or whole.share < thresholds.VALIDATION_NOTICE:
        return None
    found = find_rarer(run, whole)
    if found is None:
        return None
    if found.unit == 'epoch':
        every = phrase('epoch')
        if found.interval > 1:
            every = phrase('{epochs}', epochs=found.interval)
    else:
        every = phrase('iteration')
        if found.interval > 1:
            every = phrase('{iterations}', iterations=found.interval)
    return notice(
        phrase(
            'A validation of {each_s:sum} follows each {every}, {training_s:sum} of '
            'training. train_cfg.val_interval={rarer} would save {saved_s:long} of a '
            'whole run.',
            found,
            each_s=whole.costs.wall_s / whole.costs.count,
            every=every,
        ),
        whole.share,
    )
