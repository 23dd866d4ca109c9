"""Decides on changes of validation's loader while training runs; no I/O.

One jump, as for the train loader, and only where its gain is sure: validations are too
few to try anything.
"""

from __future__ import annotations

from msgspec import structs

from mmgpu_hooks.judge.recorded import read_settings
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.schedule import Schedule
from mmgpu_hooks.judge.tuned import judge_validation_change
from mmgpu_hooks.judge.validation import (
    ValidationLoops,
    count_validations,
    find_loops,
)
from mmgpu_hooks.recommend.job import VALIDATION, Choice, Gain, Job, read_loader
from mmgpu_hooks.recommend.limits import LiveLoader
from mmgpu_hooks.recommend.search import decide, predict_gain
from mmgpu_hooks.recommend.settings import BY_NAME
from mmgpu_hooks.recommend.tuning import (
    LEAST_GAIN,
    SPARE_S,
    find_last,
    find_memory_doubt,
    predict_iter_s,
    record_verdict,
)
from mmgpu_hooks.schema.recorded import TunedRecord, TunedSettings
from mmgpu_hooks.schema.text import Text, phrase
from mmgpu_hooks.schema.tuning import TuneAnswer, TuneQuestion

TUNED_FOR_VALIDATION = tuple(
    BY_NAME[name] for name in ('num_workers', 'prefetch_factor', 'persistent_workers')
)
"""Settings of validation's loader that are changed in training, in search order."""


def answer_on_validation(run: Run, question: TuneQuestion) -> TuneAnswer:
    """Returns the decision on validation's loader: a change, its judgement, or to wait.

    Args:
        run: The only rank, as far as it is recorded.
        question: What its evidence does not say.
    """
    last = find_last(run, 'validation')
    if last is not None and last.action == 'change':
        verdict = judge_validation_change(run)
        if verdict is None:
            return TuneAnswer(why=phrase('too few validations since the change'))
        return TuneAnswer(judged=record_verdict(verdict, last))
    if last is not None or not question.can_change:
        return TuneAnswer(why=phrase('nothing is left to be judged'))
    loops = find_loops(run)
    if loops is None:
        return TuneAnswer(why=phrase('its loop does not show its iterations'))
    if loops.workload is None or loops.is_stalled:
        return TuneAnswer(
            why=loops.why_no_workload or phrase('the waits are rare stalls')
        )
    return _answer_proposal(run, loops, question)


def _answer_proposal(
    run: Run, loops: ValidationLoops, question: TuneQuestion
) -> TuneAnswer:
    """Returns a change of validation's loader, if its gain is sure and large enough."""
    assert loops.workload is not None
    job = Job.of(
        loops,
        loops.workload,
        TUNED_FOR_VALIDATION,
        loader=VALIDATION,
        # its workers, if they live on, share the host with training
        beside=LiveLoader(run, read_loader(run)),
    )
    choice = decide(job).new
    if choice['persistent_workers'] and not question.may_persist:
        choice = {**choice, 'persistent_workers': job.old['persistent_workers']}
    if choice == job.old:
        return TuneAnswer(why=phrase('no other setting is surely faster'))
    gain = predict_gain(job, job.old, choice)
    workload = loops.workload
    start_s = workload.worker_start_s * bool(choice['num_workers'])
    cost_s = start_s + workload.batch_time.mean_s + SPARE_S
    doubt = _find_doubt(run, loops, job, choice, gain, cost_s)
    if doubt is not None:
        return TuneAnswer(why=doubt)
    workers = choice['num_workers']
    record = TunedRecord(
        iteration=0,
        action='change',
        reason='predicted',
        loader='validation',
        # niceness is the train loader's
        old=structs.replace(read_settings(loops.meta), worker_nice=None),
        new=TunedSettings(
            num_workers=workers,
            prefetch_factor=choice['prefetch_factor'] if workers else None,
            persistent_workers=bool(choice['persistent_workers'] and workers),
        ),
        iter_s=loops.figures.iter_s,
        predicted_iter_s=predict_iter_s(job, choice),
        gain_pct=100 * gain.share,
        gain_low_pct=100 * gain.low,
        gain_high_pct=100 * gain.high,
    )
    return TuneAnswer(proposed=record, cost_s=cost_s)


def _find_doubt(
    run: Run,
    loops: ValidationLoops,
    job: Job,
    choice: Choice,
    gain: Gain,
    cost_s: float,
) -> Text | None:
    """Returns why validation's loader may not get new settings; ``None`` if it may."""
    if gain.low < LEAST_GAIN:
        return phrase('no gain is sure enough yet')
    is_more = choice['num_workers'] > job.old['num_workers']
    if is_more and (doubt := find_memory_doubt(run)):
        return doubt
    loop_s = loops.figures.duration_s / len(loops.records)
    if gain.low * loop_s * _count_left(run) < cost_s:
        return phrase('what is left is too short to pay for a change')
    return None


def _count_left(run: Run) -> int:
    """Counts the validations still to come: as planned, or by their rate so far."""
    schedule, done = Schedule.of(run.meta), run.validations[-1].iteration
    planned = None if schedule is None else schedule.count_validations(done)
    if planned is not None:
        return planned
    return max(count_validations(run) - len(run.validations), 0)
