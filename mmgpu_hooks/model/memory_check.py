"""An estimate of memory beside what a run of the same model measured. Pure."""

from __future__ import annotations

from mmgpu_hooks.model.training_memory import predict_activations
from mmgpu_hooks.schema import MeasuredMemory, MemoryEstimate, RunEvidence


def compare_with_run(
    estimate: MemoryEstimate, optimizer: str, evidence: RunEvidence
) -> MeasuredMemory | str:
    """Estimate the batch at which a run had its largest peak.

    Args:
        estimate: Of the run's model.
        optimizer: The run's optimizer, as the estimate names it.
        evidence: Of the run.

    Returns:
        Both figures, or in a sentence why they cannot be compared.
    """
    batch = evidence.run.loader.batch_size
    peaks = [
        (record.gpu_mem_peak_bytes, record.largest_batch_pixels)
        for record in evidence.intervals
        if record.gpu_mem_peak_bytes and record.largest_batch_pixels
    ]
    if not peaks or not batch:
        why = evidence.run.unknown.get('gpu_mem_peak_bytes') or (
            'its evidence has no peak of the CUDA allocator with the size of the batch'
        )
        return f'The run cannot be compared: {why}.'
    static = estimate.static.total_bytes(optimizer)
    if estimate.fit is None or static is None:
        return 'The run cannot be compared: a part of the estimate is unknown.'
    peak, total_pixels = max((peak or 0, pixels or 0) for peak, pixels in peaks)
    pixels = total_pixels // batch
    counted = evidence.model
    parts = counted and (
        counted.parameter_bytes,
        counted.gradient_bytes,
        counted.optimizer_state_bytes,
        counted.buffer_bytes,
        counted.ema_bytes,
    )
    difference = None
    if parts and all(part is not None for part in parts):
        difference = sum(part or 0 for part in parts) - static
    return MeasuredMemory(
        path=evidence.path,
        batch_size=batch,
        pixels=pixels,
        optimizer=optimizer,
        peak_bytes=peak,
        predicted_bytes=static + predict_activations(estimate.fit, batch, pixels),
        static_difference_bytes=difference,
    )
