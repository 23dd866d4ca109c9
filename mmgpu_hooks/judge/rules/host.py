"""Rules about host CPU work of a train step other than its arithmetic."""

from __future__ import annotations

from mmgpu_hooks.judge import thresholds
from mmgpu_hooks.judge.host_costs import find_profile_of
from mmgpu_hooks.judge.rules.rule import fine, notice, rule
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema.judged import Finding
from mmgpu_hooks.schema.text import phrase


def _judge(run: Run, name: str) -> Finding | None:
    """Returns a finding on host work that an optimisation would save, if notable."""
    cost, iter_s = run.host_costs.get(name), run.figures.iter_s
    if cost is None or not iter_s or not run.is_worth_sparing(cost):
        return None
    share = cost.saved_s / iter_s
    if not cost.is_measured:
        return notice(
            phrase(
                '{found}: up to {saved_s} of host CPU an iteration ({saved_pct:exact} '
                'of {iter_s}). `mmgpu profile` measures it; optimize={name} takes it '
                'off, all bits the same.',
                cost,
                saved_pct=100 * share,
                iter_s=iter_s,
            )
        )
    return notice(
        phrase(
            '{found}: {now_s} of host CPU an iteration, of which optimize={name} takes '
            'off {saved_s} ({saved_pct:exact} of {iter_s}), all bits the same.',
            cost,
            saved_pct=100 * share,
            iter_s=iter_s,
        ),
        share,
    )


@rule('MG601', 'Parameter groups that are alike')
def judge_groups(run: Run) -> Finding | None:
    """The optimizer has many parameter groups, which have few distinct settings.

    MMEngine makes a group of each tensor where a config has ``paramwise_cfg``, and
    PyTorch steps group by group: hundreds of calls where a few would do. On a fast card
    the step waits for them. ``optimize='param_groups'`` merges those of equal settings
    while the step runs, and at no other time.
    """
    return _judge(run, 'param_groups')


@rule('MG602', 'The average is taken tensor by tensor')
def judge_averages(run: Run) -> Finding | None:
    """An EMA hook averages the model in several calls for each tensor.

    It does so after the losses were read, when the card has nothing left to do.
    ``optimize='ema'`` averages lists of tensors by the same formula.
    """
    return _judge(run, 'ema')


@rule('MG603', 'Small tensors are a file each')
def judge_small_tensors(run: Run) -> Finding | None:
    """Workers send each tensor of a batch, however small, as a file in shared memory.

    That is a descriptor, an mmap and some system calls on both sides, and many open
    files (``received 0 items of ancdata``). ``optimize='small_tensors'`` sends those of
    at most 4 KiB inside the message.
    """
    return _judge(run, 'small_tensors')


@rule('MG604', 'Iterations get slower with age')
def judge_histories(run: Run) -> Finding | None:
    """MMEngine copies the whole history of a scalar for each value that is added.

    So every iteration takes longer than the one before, whatever the model: 10 ms with
    13 scalars after 300,000 iterations. ``optimize='history'`` has histories grow by
    doubling.
    """
    return _judge(run, 'history')


@rule('MG605', 'What clipping takes')
def judge_clipping(run: Run) -> Finding | None:
    """``clip_grad`` goes through the gradients of all parameters in each step.

    The norm is computed in the order of the parameter groups, so nothing changes it
    without another sum. It is counted here, and measured by ``mmgpu profile``.
    """
    counted, iter_s = run.meta.overhead, run.figures.iter_s
    if counted is None or counted.clipped_tensors is None or not iter_s:
        return None
    profile = find_profile_of(run)
    part = None if profile is None else profile.host_parts.get('clipping')
    if part is None:
        return fine(
            phrase(
                'clip_grad goes through the gradients of {clipped_tensors} in each '
                'step; `mmgpu profile` measures it.',
                counted,
            )
        )
    share = part.plain_s / iter_s
    detail = phrase(
        'clip_grad goes through the gradients of {clipped_tensors} in each step: '
        '{host_s} of host CPU ({host_pct:exact} of an iteration). Nothing takes that '
        'off and leaves all bits the same.',
        counted,
        host_s=part.plain_s,
        host_pct=100 * share,
    )
    is_notable = share >= thresholds.MEASURED_SAVING_WORTH
    return notice(detail, share) if is_notable else fine(detail)


@rule('MG606', 'Scalars are read from the card')
def judge_read_scalars(run: Run) -> Finding | None:
    """Losses are copied from the GPU in each iteration, for the log.

    The host waits there until the step is computed, so the time is the step's. What
    comes after (the average, schedulers, the next batch) begins with an idle card.
    """
    counts = run.every.having('read_scalars').values('read_scalars')
    if not counts or not counts[0]:
        return None
    return fine(
        phrase(
            '{scalars} of each iteration are read from the card, and the host waits '
            'for the step there; the time is in the step.',
            scalars=counts[0],
        )
    )


@rule('MG607', 'New tensors are filled')
def judge_fills(run: Run) -> Finding | None:
    """With ``randomness=dict(deterministic=True)`` PyTorch fills every new tensor.

    So that code which reads memory that it never wrote reads the same. Forward and
    backward passes of RTMDet-tiny took 1.3 times as long on small images. After the
    Runner is built, ``torch.utils.deterministic.fill_uninitialized_memory = False``
    leaves that out, for the whole process, and all other determinism stays. This
    project does not touch it.
    """
    counted = run.meta.overhead
    if counted is None or not counted.fills_new_tensors or run.is_data_bound:
        return None
    profile = find_profile_of(run)
    fills = None if profile is None else profile.fills
    if fills is None:
        return notice(
            phrase(
                'deterministic=True has PyTorch fill each new tensor. '
                'torch.utils.deterministic.fill_uninitialized_memory=False leaves that '
                'out.'
            )
        )
    return notice(
        phrase(
            'deterministic=True has PyTorch fill each new tensor: {fills:.0f} fills in '
            'a step. torch.utils.deterministic.fill_uninitialized_memory=False leaves '
            'that out.',
            fills=fills,
        )
    )
