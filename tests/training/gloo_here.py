"""Module for ``custom_imports`` that starts a gloo process group, as no GPU is used.

MMEngine's own start of a group needs a GPU.
"""

from __future__ import annotations

import torch.distributed

torch.distributed.init_process_group('gloo')
