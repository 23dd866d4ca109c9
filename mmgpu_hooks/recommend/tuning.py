"""Decides on changes of the DataLoader while training runs; no I/O.

One jump to what the search recommends, where the low end of its gain is sure and pays
for the change in what is left; afterwards a verdict on what that gave. Where a gain is
likely and only the model is in doubt, more evidence of the same setting would not end
that doubt: the change is tried, and taken back unless it gives something.
"""

from __future__ import annotations

from dataclasses import dataclass

from mmgpu_hooks.judge import thresholds
from mmgpu_hooks.judge.memory import find_worker_growth
from mmgpu_hooks.judge.recorded import read_settings
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.tuned import ChangeVerdict, judge_change
from mmgpu_hooks.model.prediction import COVERAGE
from mmgpu_hooks.model.workload import DEFAULT_PREFETCH
from mmgpu_hooks.recommend.job import Choice, Gain, Job
from mmgpu_hooks.recommend.search import decide, predict_gain
from mmgpu_hooks.recommend.settings import BY_NAME
from mmgpu_hooks.schema.recorded import TunedLoader, TunedRecord, TunedSettings
from mmgpu_hooks.schema.text import Text, phrase
from mmgpu_hooks.schema.tuning import TuneAnswer, TuneQuestion

TUNED = tuple(
    BY_NAME[name]
    for name in (
        'opencv_num_threads',
        'num_workers',
        'prefetch_factor',
        'persistent_workers',
    )
)
"""Settings that can be changed while a DataLoader runs, in the search's order.

Niceness is judged alone.
"""

LEAST_GAIN = 0.05
"""Lower bound that a gain (share of training time) needs to change a live loader.

Smaller gains do not distinguish changes from noise, and a change has costs that are not
predicted.
"""

TRIED_GAIN, MOST_RISKED = 0.05, 0.15
"""Smallest unsure gain to try, and largest loss to risk, as shares of training time.

From 0 to 1, of the time per image. Both the other load of the run and none must
promise so much.
"""

TRIED_DESPITE_NOISE = 0.03
"""Smallest gain to try, minus its measurement error, as a share of training time.

What is left of the doubt is the model's, which more evidence does not end.
"""

JUDGED_ITERATIONS = 100
"""Number of iterations from a loader change until it is judged and may be undone."""

SPARE_PREFETCH = 4
"""Number of batches ahead of each worker where a live DataLoader gets more workers."""

LEAST_INTERVALS = 3
"""Smallest number of recorded log intervals before a live DataLoader is changed."""

SPARE_S = 0.5
"""Seconds that changing a live loader costs, without worker starts and first batch."""


@dataclass(frozen=True)
class _Wanted:
    """Change of a live DataLoader that is predicted to save more than it costs."""

    choice: Choice
    gain: Gain
    job: Job
    cost_s: float


def answer_question(
    run: Run, question: TuneQuestion, *, asking: Run | None = None
) -> TuneAnswer:
    """Returns the tuner's decision: a DataLoader change, its judgement, or to wait.

    Args:
        run: The rank that is judged, as far as it is recorded.
        question: What its evidence does not say.
        asking: Rank 0, where that is another one.
    """
    asking = run if asking is None else asking
    last = find_last(asking, 'train')
    if last is not None and last.action == 'change' and last.reason == 'predicted':
        # a rank that could not make the change has no record of it
        has_made = run.last_switch is not None and run.last_switch.new == last.new
        return _answer_verdict(run if has_made else asking, last)
    if not question.can_change:
        return TuneAnswer(why=phrase('nothing is left to be judged'))
    return _answer_proposal(run, question)


def _answer_verdict(run: Run, last: TunedRecord) -> TuneAnswer:
    """Returns the judgement of the last DataLoader change, if one is due."""
    verdict = judge_change(run.evidence, run.other_ranks)
    if verdict is None:
        return TuneAnswer(why=phrase('too few iterations since the change'))
    return TuneAnswer(judged=record_verdict(verdict, last))


def find_last(run: Run, loader: TunedLoader) -> TunedRecord | None:
    """Finds the last tuning action on one loader in a run; ``None`` without one.

    Args:
        run: Rank 0, or the only one.
        loader: ``train`` or ``validation``.
    """
    return next(reversed(run.evidence.tuned_of(loader)), None)


def record_verdict(verdict: ChangeVerdict, last: TunedRecord) -> TunedRecord:
    """Makes the record of a judged loader change, which is kept or taken back.

    Args:
        verdict: On the change.
        last: The change.
    """
    gain = verdict.gain
    return TunedRecord(
        iteration=0,
        action='keep' if verdict.is_kept else 'roll_back',
        reason=verdict.reason,
        loader=last.loader,
        old=last.new,
        new=last.new if verdict.is_kept else last.old,
        iter_s=verdict.before_s,
        predicted_iter_s=last.predicted_iter_s,
        measured_iter_s=verdict.after_s,
        gain_pct=100 * (gain.value if gain else 1 - verdict.after_s / verdict.before_s),
        gain_low_pct=None if gain is None else 100 * gain.low,
        gain_high_pct=None if gain is None else 100 * gain.high,
    )


def _answer_proposal(run: Run, question: TuneQuestion) -> TuneAnswer:
    """Returns a change of the DataLoader, if its gain is sure and large enough."""
    if len(run.latest) < LEAST_INTERVALS:
        # the first one holds lazy initialisation, or the start of workers
        return TuneAnswer(why=phrase('too few intervals yet'))
    if run.workload is None or run.is_stalled:
        return TuneAnswer(
            why=run.why_no_workload or phrase('the waits are rare stalls')
        )
    wanted = _find_wanted(run, question)
    if isinstance(wanted, Text):
        return TuneAnswer(why=wanted)
    old = _read_now(run)
    new = _as_settings(run, wanted.choice, old)
    record = TunedRecord(
        iteration=0,
        action='change',
        reason='predicted',
        old=old,
        new=new,
        iter_s=run.figures.iter_s,
        predicted_iter_s=predict_iter_s(wanted.job, wanted.choice),
        gain_pct=100 * wanted.gain.share,
        gain_low_pct=100 * wanted.gain.low,
        gain_high_pct=100 * wanted.gain.high,
    )
    return TuneAnswer(proposed=record, cost_s=wanted.cost_s)


def _find_wanted(run: Run, question: TuneQuestion) -> _Wanted | Text:
    """Finds the DataLoader change that is worthwhile, or why there is none."""
    assert run.workload is not None
    job = Job.of(run, run.workload, TUNED)
    choice = _with_spare(job, _choose(job))
    if choice['persistent_workers'] and not question.may_persist:
        choice = {**choice, 'persistent_workers': job.old['persistent_workers']}
    if choice == job.old:
        return phrase('no other setting is surely faster')
    is_more = choice['num_workers'] > job.old['num_workers']
    if is_more and (doubt := _find_growth_doubt(run)):
        return doubt
    gain = predict_gain(job, job.old, choice)
    workload, iter_s = run.workload, run.figures.iter_s or 0.0
    start_s = workload.worker_start_s * bool(choice['num_workers'])
    cost_s = start_s + workload.batch_time.mean_s + SPARE_S
    alone = predict_gain(job.without_other_load, job.old, choice)
    if min(gain.low, alone.low) >= LEAST_GAIN:
        share, least_s = gain.low, cost_s
    elif _is_worth_a_trial(gain, alone):
        # there and back
        share = gain.share
        least_s = 2 * cost_s + max(-gain.low, 0.0) * iter_s * JUDGED_ITERATIONS
    else:
        return phrase('no gain is sure enough yet')
    if share * iter_s * question.iterations_left < least_s:
        return phrase('what is left is too short to pay for a change')
    return _Wanted(choice, gain, job, cost_s)


def predict_iter_s(job: Job, choice: Choice) -> float | None:
    """Predicts the mean seconds of an iteration after a change of a live loader.

    The measured mean, shortened as the model's is: the two may differ, by rare stalls
    or other load, and what is said beside the predicted gain has to agree with it.
    """
    now_s = job.run.figures.iter_s
    if now_s is None:
        return None
    return now_s * job.at(choice).iter_s / job.at(job.old).iter_s


def _choose(job: Job) -> Choice:
    """Chooses surely faster settings, or those with the largest unsure gain."""
    decision = decide(job)
    if decision.new != job.old:
        return decision.new
    unsure = [rejected.choice for rejected in decision.rejected.values()]
    sharing = _find_core_sharing(job)
    if sharing is not None:
        unsure.append(sharing)
    return max(
        unsure,
        key=lambda choice: predict_gain(job, job.old, choice).share,
        default=job.old,
    )


def _find_core_sharing(job: Job) -> Choice | None:
    """Finds the fewest workers nearly as fast as any that share the training's core.

    A recommendation takes these for a large gain only, as predictions know least about
    them. Here the gain is measured.
    """
    if job.at(job.old).most_gain < TRIED_GAIN:
        return None
    workers = BY_NAME['num_workers']
    seconds = {
        count: job.at(_with_workers(job, count)).total_s
        for count in workers.candidates(job, job.old)
        if count > job.old['num_workers'] and workers.handicap(job, count)
    }
    if not seconds:
        return None
    enough_s = min(seconds.values()) * (1 + workers.near)
    fewest = next(count for count, total_s in seconds.items() if total_s <= enough_s)
    return _with_workers(job, fewest)


def _with_workers(job: Job, count: int) -> Choice:
    return job.settle({**job.old, 'num_workers': count})


def _is_worth_a_trial(gain: Gain, alone: Gain) -> bool:
    """True if settings are likely faster, and only the model's error casts doubt."""
    is_model_alone = gain.share - COVERAGE * gain.noise >= TRIED_DESPITE_NOISE
    return (
        is_model_alone
        and min(gain.share, alone.share) >= TRIED_GAIN
        and min(gain.low, alone.low) >= -MOST_RISKED
    )


def _with_spare(job: Job, choice: Choice) -> Choice:
    """Returns chosen settings with a quarter more workers, and more batches ahead.

    As far as the host allows for it. The search takes the fewest workers that are
    nearly as fast as any, and after some tens of iterations it does not know the slow
    batches yet.
    """
    workers = choice['num_workers']
    if workers <= job.old['num_workers']:
        return choice
    more = workers + max(workers // 4, 1)
    if not BY_NAME['num_workers'].handicap(job, more):
        choice = _choose_carried(job, {**choice, 'num_workers': more}, choice)
    ahead = max(choice['prefetch_factor'] or DEFAULT_PREFETCH, SPARE_PREFETCH)
    return _choose_carried(job, {**choice, 'prefetch_factor': ahead}, choice)


def _choose_carried(job: Job, spare: Choice, choice: Choice) -> Choice:
    """Returns settings with something to spare, unless slower or beyond the host."""
    if spare['num_workers'] > job.cap(spare).workers:
        return choice
    is_slower = job.at(spare).total_s > job.at(choice).total_s
    return choice if is_slower else spare


def _find_growth_doubt(run: Run) -> Text | None:
    """Returns why a live loader may not get more workers; ``None`` if it may."""
    share = run.figures.data_wait_share or 0.0
    if share < thresholds.DATA_WAIT_NOTICE:
        return phrase('training does not wait for its loader')
    return find_memory_doubt(run)


def find_memory_doubt(run: Run) -> Text | None:
    """Returns why memory does not allow for more workers; ``None`` if it does.

    Args:
        run: The training.
    """
    is_low = any(record.is_low for record in run.evidence.memory)
    if is_low or find_worker_growth(run) is not None:
        return phrase('memory is short, or grows')
    return None


def _read_now(run: Run) -> TunedSettings:
    """Reads the settings that a run's DataLoader has after all changes."""
    switch = run.last_switch
    return read_settings(run.evidence.run) if switch is None else switch.new


def _as_settings(run: Run, choice: Choice, old: TunedSettings) -> TunedSettings:
    """Converts setting values to loader settings, niced if checkpoint saves need it."""
    workers = choice['num_workers']
    threads = choice['opencv_num_threads']
    if threads == BY_NAME['opencv_num_threads'].read(run):
        threads = old.opencv_num_threads
    return TunedSettings(
        num_workers=workers,
        prefetch_factor=choice['prefetch_factor'] if workers else None,
        persistent_workers=bool(choice['persistent_workers'] and workers),
        opencv_num_threads=threads if workers else None,
        worker_nice=_find_nice(run, workers) if workers else None,
    )


def _find_nice(run: Run, workers: int) -> int | None:
    """Finds the workers' nice value that checkpoint saves need, if any."""
    found = BY_NAME['worker_nice'].judge_alone(run, {'num_workers': workers})
    new = None if found is None else found.new
    return run.meta.worker_nice if new is None else int(new)
