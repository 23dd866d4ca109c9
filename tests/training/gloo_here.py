"""Module for ``custom_imports`` that starts a gloo process group for ranks without
GPUs, as MMEngine's own start needs one."""

from __future__ import annotations

import torch.distributed

torch.distributed.init_process_group('gloo')
