"""Words what another batch size means for the learning rate. Pure."""

from __future__ import annotations

from mmgpu_hooks.schema import LearningRate


def word_learning_rate(
    rate: LearningRate | None, old: int, new: int, ranks: int, is_iter_based: bool
) -> list[str]:
    """What another batch size means for the learning rate and the length: sentences.

    The linear scaling rule (Goyal et al. 2017, https://arxiv.org/abs/1706.02677): k
    times the batch, k times the rate.

    Args:
        rate: Of the config; ``None`` when it could not be read.
        old: Images per batch and rank, now.
        new: Likewise, then.
        ranks: Of the training.
        is_iter_based: Whether the training's length is counted in iterations.
    """
    rate = rate or LearningRate()
    total, then = old * ranks, new * ranks
    batches = f'{total} to {then} images over {ranks} rank(s)'
    if rate.is_auto and rate.base_batch_size:
        scaled = ''
        if rate.lr is not None:
            base = rate.base_batch_size
            first, second = rate.lr * total / base, rate.lr * then / base
            scaled = f', from {first:g} to {second:g}'
        said = [
            'auto_scale_lr is enabled (base_batch_size='
            f'{rate.base_batch_size}): the learning rate follows by itself{scaled}, '
            f'with the batch of {batches}.'
        ]
    else:
        lr = f' from {rate.lr:g} to {rate.lr * new / old:g}' if rate.lr else ''
        said = [
            f'The learning rate is not changed. The batch goes from {batches}; by the '
            f'linear scaling rule the rate goes{lr or " along"} ({new / old:g} times), '
            'and a longer warm-up may be needed.'
        ]
    if is_iter_based:
        said.append(
            'The training is counted in iterations: with as many of them it sees '
            f'{new / old:g} times the images; divide max_iters and the milestones by '
            'that to train as long as before.'
        )
    return said
