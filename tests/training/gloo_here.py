"""The process group of ranks without cards, for ``custom_imports``: MMEngine's own
start of one asks for a GPU."""

from __future__ import annotations

import torch.distributed

torch.distributed.init_process_group('gloo')
