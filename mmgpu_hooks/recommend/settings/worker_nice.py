"""The setting ``worker_nice``: workers that leave the cores to checkpoint saves."""

from __future__ import annotations

from dataclasses import replace

from mmgpu_hooks.judge import thresholds
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.model.prospect import Prospect
from mmgpu_hooks.recommend.job import Choice, Job, LoneChange, Setting
from mmgpu_hooks.schema.judged import SaveCure
from mmgpu_hooks.schema.text import Text, phrase, sentences
from mmgpu_hooks.schema.values import NICENESS

NICE = 10
"""Nice value for workers: a tenth of the usual CPU weight, so that none starves."""


class WorkerNice(Setting):
    """Chooses a nice value for workers to shorten checkpoint saves, not loading."""

    name = 'worker_nice'
    noun = phrase('Niceness of the workers')
    # where mmgpu enable puts the hook
    place = 'default_hooks.gpu_efficiency'
    values = NICENESS
    most = 19
    is_alone = True
    rules = ('MG304',)

    def read(self, run: Run) -> int | None:
        """Reads the nice value that the hook was asked to give workers."""
        return run.meta.worker_nice

    def apply(
        self, job: Job, then: Prospect, new: int | None, slip: float = 0.0
    ) -> Prospect:
        """Predicts training time (a `Prospect`) if niced workers delay saves less."""
        run, saves_s = job.run, job.run.figures.ledger_s.get('checkpoint_save', 0.0)
        if (new or 0) < NICE or job.old[self.name] or not saves_s:
            return then
        cure = _cure_by_nice(run)
        if cure is None or cure.run_net_s is None:
            return then
        if not _is_full(run, then.loader.num_workers):
            return then
        spared = min(cure.run_net_s / saves_s, 1.0)
        plan = replace(then.plan, saves_s=then.plan.saves_s * (1.0 - spared))
        return replace(then, plan=plan)

    def why_unknown(self, job: Job, new: int | None) -> Text | None:
        """Says why the effect of a nice value is unknown; ``None`` if it is known."""
        old = job.old[self.name] or 0
        if (new or 0) == old or (not old and (new or 0) >= NICE):
            return None
        if old:
            return phrase('What saves would take beside less niced workers is unknown.')
        return phrase(
            'What a niceness below {nice} makes of the saves is unknown.', nice=NICE
        )

    def judge_alone(self, run: Run, at: Choice) -> LoneChange | None:
        """Returns how much niced workers shorten saves, and a value if worthwhile."""
        cure = None if run.meta.worker_nice else _cure_by_nice(run)
        if cure is None or run.meta.host.cores_had is None:
            return None
        net_s, least = cure.run_net_s, thresholds.SAVE_CURE_WORTH
        if net_s is None or run.figures.run_share(net_s) < least:
            return LoneChange(cure)
        if not _is_full(run, at['num_workers']):
            return LoneChange(cure)
        why = phrase('Loader workers had the cores while checkpoints were saved.')
        return LoneChange(cure, NICE, sentences(why, cure.sentence))


def _is_full(run: Run, num_workers: int) -> bool:
    """True if workers and the training process leave no core free."""
    cores = run.meta.host.cores_had
    return cores is not None and num_workers + 1 > cores


def _cure_by_nice(run: Run) -> SaveCure | None:
    """Predicts the seconds by which niced workers would shorten checkpoint saves.

    Delays that make no single save slow count too, as soon as they add up to something.

    Returns:
        ``None`` where workers delay no save by enough.
    """
    held = [
        (save, judged)
        for save, judged in zip(run.save_records, run.judged_saves)
        if judged.held_s.get('workers', 0.0) > 0.0
    ]
    gross_s, count = sum(judged.held_s['workers'] for _, judged in held), len(held)
    is_much = run.figures.run_share(gross_s) >= thresholds.SAVE_CURE_WORTH
    if not held or not (is_much or run.saves_held_by('workers')):
        return None
    nets = [
        judged.net_delay_s * judged.held_s['workers'] / judged.gross_delay_s
        for _, judged in held
        if judged.net_delay_s is not None and judged.gross_delay_s
    ]
    net_s = sum(nets) if nets else None
    now_s = sum(save.wall_s for save, _ in held) / count
    then_s = now_s - gross_s / count
    return SaveCure(
        'worker_nice',
        phrase(
            'Niced workers, GPUEfficiencyHook(worker_nice={nice}): {saves} are '
            'predicted to take {then_s} each, now {now_s}; {gross_s:sum} less in all '
            '(gross), {net_s:sum} of it won by the job (net).',
            nice=NICE,
            saves=count,
            then_s=then_s,
            now_s=now_s,
            gross_s=gross_s,
            net_s=net_s,
        ),
        save_s=then_s,
        saves=count,
        run_gross_s=gross_s,
        run_net_s=net_s,
    )
