"""Joins the ranks of a trial where MMEngine cannot: without CUDA."""

from __future__ import annotations

from typing import Any


def join_without_cuda(config: Any) -> None:
    """Join a process group over gloo, and have the model wrapped for it.

    MMEngine sets a CUDA card before it joins ranks over any backend, and gives the
    model's wrapper that card; a group that is there already is left alone. With CUDA
    nothing is done.

    Args:
        config: MMEngine's, of a trial; its wrapper is set where it has none.
    """
    import torch

    if torch.cuda.is_available():
        return
    torch.distributed.init_process_group('gloo')
    if config.get('model_wrapper_cfg') is None:
        config.model_wrapper_cfg = {
            'type': 'MMDistributedDataParallel',
            'device_ids': None,
            'broadcast_buffers': False,
            'find_unused_parameters': config.get('find_unused_parameters', False),
        }
