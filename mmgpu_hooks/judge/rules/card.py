"""Rule on GPU memory by use: tensors, allocator cache, CUDA context and others."""

from __future__ import annotations

from mmgpu_hooks.judge.card_memory import find_card_figures
from mmgpu_hooks.judge.rules.rule import notice, rule
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema.judged import Finding


@rule('MG410', "What the card's memory consists of")
def judge_card_figures(run: Run) -> Finding | None:
    """Parts of the GPU memory that ``nvidia-smi`` shows, and why it grew.

    It is the sum of the tensors that were in use at the peak, of what PyTorch's
    allocator keeps for later (``empty_cache()`` gives it back, and the next batch asks
    for it again), and of the CUDA context with what other programs hold. Growth of the
    peak is no leak where the batch was the largest so far; a leak is MG404.

    ``--details`` and the page say it of each run; it is a finding from 80 % of the card
    on, or where the peak grew by a fifth after the first tenth of the run. These
    figures have met NVIDIA's mock driver and FakeGPU, and no real card yet.
    """
    figures = find_card_figures(run)
    if figures is None or not figures.is_notable:
        return None
    return notice(figures.sentence)
