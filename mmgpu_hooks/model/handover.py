"""What handing batches over costs, where a run does not tell it.

A worker pickles each batch and, for each tensor, passes a file descriptor: the training
process connects to a thread of that worker, both prove who they are, and the descriptor
goes over. Where the worker is computing meanwhile, that thread waits for Python's lock.

The figures were measured on a 2.x GHz server core with PyTorch 2; a run whose loop does
not starve corrects the fetching by its own measure.
"""

from __future__ import annotations

from dataclasses import dataclass

from mmgpu_hooks.schema import Cost

GAP_S = 0.0005
"""From one batch to the next of a worker that has enough to do."""

CPU_S, CPU_TENSOR_S = 0.0008, 0.00025
"""CPU of a worker beyond the loading: per batch, and per tensor in it."""

FETCH_S, FETCH_TENSOR_S = 0.0003, 0.00025
"""Of fetching a ready batch, on both sides: per batch, and per tensor in it."""

BUSY_S = 0.003
"""What fetching takes longer when no core is free: some turns of the scheduler."""

USUAL_TENSORS = 4
"""In a batch of which the tensors were not counted."""

MOST_TENSORS = 256
"""Of more, the workers take turns: figures beyond were not measured."""


@dataclass(frozen=True)
class Handover:
    """Seconds per batch."""

    gap_s: float
    cpu_s: float
    whole_s: float
    """That it makes the loading longer, the gap included."""
    fetch_s: float
    fetch_busy_s: float


def estimate_handover(
    tensors: int | None, occupancy: Cost, batch_cpu: Cost
) -> Handover:
    """What is to be expected of a batch.

    Args:
        tensors: In a batch; ``None`` when unknown.
        occupancy: Of loading it.
        batch_cpu: The CPU of that.
    """
    count = USUAL_TENSORS
    if tensors is not None and tensors >= 0:
        count = min(tensors, MOST_TENSORS)
    cpu_s = CPU_S + CPU_TENSOR_S * count
    share = 0.0
    if occupancy.mean_s > 0.0:
        # where the loading waits anyway, handing over goes on beside it
        share = min(batch_cpu.mean_s / occupancy.mean_s, 1.0)
    return Handover(
        gap_s=GAP_S,
        cpu_s=cpu_s,
        whole_s=GAP_S + share * cpu_s,
        fetch_s=FETCH_S + FETCH_TENSOR_S * count,
        fetch_busy_s=BUSY_S,
    )
