"""How large the checkpoints of a config are, before one is written."""

from __future__ import annotations

from pathlib import Path

from mmgpu_hooks.experiment.config_model import read_config_model
from mmgpu_hooks.experiment.model_memory import CONFIG_OPTIMIZER, count_static
from mmgpu_hooks.experiment.saved_tensors import parameter_sizes

_USUAL_OPTIMIZER = 'adamw'
"""The largest state of the usual ones stands for one that is not known."""


def estimate_checkpoint_bytes(config: Path) -> int:
    """Tensors of a checkpoint with its optimizer, by building the model on the CPU.

    Histories of the message hub, which grow with the run, are not in it.

    Raises:
        ModelError: If the config gives no model.
    """
    built = read_config_model(config)
    gradients = parameter_sizes(built.model)
    static = count_static(built, gradients, (CONFIG_OPTIMIZER, _USUAL_OPTIMIZER), [])
    states = list(static.optimizer_state_bytes.values())
    state = next(size for size in states if size is not None)
    model = static.parameter_bytes + static.buffer_bytes
    return model + static.ema_bytes + state
