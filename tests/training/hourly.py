"""Program of a training whose hourly verdicts are written every four seconds."""

from __future__ import annotations

import sys

from mmgpu_hooks.hooks import verdict_source
from training.bound import main

if __name__ == '__main__':
    # read when the training begins, and at each verdict
    verdict_source.VERDICT_PERIOD_S = 4.0
    main(*sys.argv[1:])
