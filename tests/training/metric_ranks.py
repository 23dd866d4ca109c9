"""Program for torchrun: evaluates a metric with half the predictions per rank."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch.distributed

from fakes.predicted import evaluate, predict

METRICS = {'plain': 'mmdet.CocoMetric', 'fast': 'mmgpu_hooks.FastCocoMetric'}


def main(annotations: Path, folder: Path) -> None:
    """Evaluates with CocoMetric and FastCocoMetric; each rank writes their values."""
    torch.distributed.init_process_group('gloo')
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    samples = predict(annotations)
    found = {}
    for name, kind in METRICS.items():
        metric = {'type': kind, 'ann_file': str(annotations)}
        found[name] = evaluate(metric, samples[rank::ranks], len(samples))
    (folder / f'figures_{rank}.json').write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


if __name__ == '__main__':
    main(Path(sys.argv[1]), Path(sys.argv[2]))
