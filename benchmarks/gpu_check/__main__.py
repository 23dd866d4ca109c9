"""What only a CUDA machine can show: our figures beside those of nvidia-smi and torch.

Needs torch with CUDA. Two checks train, and are left out where mmengine is missing; a
detector of torchvision or MMDetection is trained when one can be imported. Takes two
minutes, as estimated without a card. Exits 2 without CUDA.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from benchmarks.harness import Benchmark, Figure, say

CHECKS = {
    'nvml': 'nvml',
    'mapping': 'mapping',
    'idle': 'events',
    'cost': 'events',
    'peaks': 'training',
    'losses': 'training',
}
"""In the order in which they run: the module of a check."""

NO_CUDA = 2


def why_no_cuda() -> str | None:
    """One sentence on why nothing can be checked here; ``None`` when it can."""
    try:
        import torch
    except ImportError:
        return 'gpu-check needs torch with CUDA, and torch is not installed.'
    if not torch.cuda.is_available():
        built = torch.version.cuda or 'none: it was built without'
        return (
            f'gpu-check needs a CUDA machine: torch {torch.__version__} (CUDA {built}) '
            'finds no GPU that it can use.'
        )
    return None


def run_check(name: str) -> list[Figure]:
    """Run one check; it is left out without its package, and missed when it breaks."""
    say(f'gpu-check: {name} ...')
    try:
        checks = import_module(f'benchmarks.gpu_check.{CHECKS[name]}')
        figures: list[Figure] = getattr(checks, f'check_{name}')()
        return figures
    except Exception as error:  # noqa: BLE001, the other figures are still wanted
        text = ' '.join(f'{type(error).__name__}: {error}'.split())
        is_left_out = isinstance(error, ModuleNotFoundError) and not (
            error.name or ''
        ).startswith(('benchmarks', 'mmgpu_hooks'))
        target = '' if is_left_out else 'no error'
        return [Figure(name, None, target=target, is_met=False, note=text)]


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; returns the exit code."""
    reason = why_no_cuda()
    if reason is not None:
        print(reason, file=sys.stderr)
        return NO_CUDA
    # cuBLAS reads it when it starts; without it, two trainings may differ
    os.environ.setdefault('CUBLAS_WORKSPACE_CONFIG', ':4096:8')
    run = Benchmark('gpu_check', str(__doc__), argv)
    for name in CHECKS:
        run.add(*run_check(name))
    return run.finish()


if __name__ == '__main__':
    sys.exit(main())
