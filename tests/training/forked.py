"""Trains with whatever MMEngine is found, with the hook and without; prints facts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import mmengine

from training.toy import HOOK, LossTape, build_runner, evidence_of, losses_of, train


def compare(folder: Path, loop: str) -> dict[str, Any]:
    """What one kind of loop gives with the hook and without."""
    losses = []
    for name, hook in (('with', HOOK), ('without', None)):
        runner = build_runner(
            folder / loop / name,
            loop=loop,
            length=48,
            num_workers=1,
            hook=hook,
            custom_hooks=[LossTape()],
        )
        losses.append(losses_of(train(runner)))
    evidence = evidence_of(folder / loop / 'with')
    assert evidence.end is not None
    return {
        'is_same': losses[0] == losses[1],
        'off': [one.source for one in evidence.sources_off],
        'hooks': sorted(evidence.end.hooks_s),
        'sources': [one.workers and one.workers.source for one in evidence.intervals],
    }


if __name__ == '__main__':
    found = {loop: compare(Path(sys.argv[1]), loop) for loop in ('epoch', 'iter')}
    print(json.dumps({'mmengine': mmengine.__file__, **found}))
