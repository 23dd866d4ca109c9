"""What real steps keep: counted on the CPU, or told by the CUDA allocator."""

from __future__ import annotations

import re
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.harness import Figure
from mmgpu_hooks.memory.activations import as_on_cuda
from mmgpu_hooks.memory.config_model import read_config_model
from mmgpu_hooks.schema import MemoryEstimate

CUDA_STEPS = 3
MAKERS = {
    'sgd': lambda p: torch.optim.SGD(p, lr=0.0),
    'momentum': lambda p: torch.optim.SGD(p, lr=0.0, momentum=0.9),
    'adam': lambda p: torch.optim.Adam(p, lr=0.0),
    'adamw': lambda p: torch.optim.AdamW(p, lr=0.0),
}


@dataclass(frozen=True)
class Judged:
    """One real step on the CPU."""

    batch_size: int
    image_size: tuple[int, int]
    saved_bytes: int
    """Kept for the backward pass when the forward pass had ended."""
    live_bytes: int
    """Most bytes of tensors alive at once, parameters and buffers among them."""
    gradient_bytes: int
    state_bytes: Mapping[str, int]
    """By optimizer, after a step."""


class LiveTensors(TorchDispatchMode):
    """Follows the storage of every tensor that an operation makes, to its end."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.peak_bytes = 0
        self._known: dict[int, Any] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self.add(tensor)
        self.peak_bytes = max(self.peak_bytes, self.bytes)
        return result

    def add(self, tensor: torch.Tensor) -> None:
        """Follow a tensor, whoever made it."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._known or not size:
            return

        def end(_: Any) -> None:
            self.bytes -= size
            del self._known[key]

        self._known[key] = weakref.ref(storage, end)
        self.bytes += size


def judge_on_cpu(config: Path, batch_size: int, size: tuple[int, int]) -> Judged:
    """Run one forward and backward pass, and a step of each optimizer."""
    built = read_config_model(config)
    model = built.model
    kept: list[torch.Tensor] = []
    torch.manual_seed(0)

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with built.running(), as_on_cuda():
        batch = built.make_batches().make(batch_size, *size)
        data = model.data_preprocessor(batch, True)
        with saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = model.parse_losses(model(**data, mode='loss'))[0]
        own = {t.untyped_storage().data_ptr() for t in model.state_dict().values()}
        saved = {
            t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in kept
        }
        saved_bytes = sum(size for place, size in saved.items() if place not in own)
        kept.clear()
        del loss, data
        live = LiveTensors()
        for tensor in model.state_dict().values():
            live.add(tensor)
        with live:
            data = model.data_preprocessor(batch, True)
            model.parse_losses(model(**data, mode='loss'))[0].backward()
    state_bytes = {}
    for name, make in MAKERS.items():
        optimizer = make(model.parameters())
        optimizer.step()
        state_bytes[name] = sum(
            value.nbytes
            for state in optimizer.state.values()
            for value in state.values()
            if isinstance(value, torch.Tensor)
        )
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    return Judged(
        batch_size=batch_size,
        image_size=size,
        saved_bytes=saved_bytes,
        live_bytes=live.peak_bytes,
        gradient_bytes=sum(grad.nbytes for grad in grads),
        state_bytes=state_bytes,
    )


def judge_on_cuda(
    name: str, config: Path, estimate: MemoryEstimate, target_pct: float
) -> Figure:
    """Train some steps on the GPU at the config's batch and image size."""
    figure = f'{name}: total off the CUDA peak'
    target = f'within {target_pct:g}'
    if not torch.cuda.is_available():
        return Figure(figure, None, '%', target, note='there is no CUDA device')
    from mmengine.optim import build_optim_wrapper

    built = read_config_model(config)
    batch_size = next(iter(estimate.activation_bytes))
    own = next(iter(estimate.static.optimizer_state_bytes))
    predicted = estimate.total_bytes(own, batch_size)
    if estimate.image_size is None or predicted is None:
        return Figure(figure, None, '%', target, note='the estimate has no total')
    # the averaged copy is left out on both sides
    predicted -= estimate.static.ema_bytes
    try:
        with built.running():
            model = built.model.cuda()
            wrapper = build_optim_wrapper(model, built.config.optim_wrapper)
            batches = built.make_batches()
            torch.cuda.reset_peak_memory_stats()
            for _ in range(CUDA_STEPS):
                batch = batches.make(batch_size, *estimate.image_size)
                model.train_step(batch, wrapper)
            peak = torch.cuda.max_memory_allocated()
    except torch.cuda.OutOfMemoryError:
        return Figure(figure, None, '%', target, note='out of memory on this GPU')
    finally:
        torch.cuda.empty_cache()
    error = 100 * (predicted / peak - 1)
    note = f'peak {peak / 2**30:.2f} GiB at batch {batch_size}'
    return Figure(figure, error, '%', target, abs(error) <= target_pct, note)


def read_published(config: Path) -> float | None:
    """``Training Memory (GB)`` of the config, from MMDetection's ``metafile.yml``."""
    metafile = config.with_name('metafile.yml')
    if not metafile.is_file():
        return None
    entry = re.search(
        rf'Name: {re.escape(config.stem)}\n(?:(?!Name:).*\n)*?.*'
        r'Training Memory \(GB\): ([\d.]+)',
        metafile.read_text(),
    )
    return float(entry[1]) if entry else None
